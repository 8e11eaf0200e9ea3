"""What a steady stream of small messages leaves on the disk, and how many files, with the settings everybody has."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator

from figures import Figure
from growth import files_and_bytes, watched
from serving import served

import lakemq

VALUE_BYTES = 1000
A_SECOND = 20_000
"""Messages: 20 MB of values."""
SLICE_S = 0.05
DISTINCT = 64 << 20
"""Bytes that values are cut from: so many of them that they do not compress."""


def run(duration_s: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, served(folder):
        with lakemq.connect(folder) as mq, watched(folder) as growth:
            mq.topics.create("t", partitions=8)
            began_s = time.monotonic()
            sent = _send(mq, duration_s)
            took_s = time.monotonic() - began_s
        files, size = files_and_bytes(folder)
        page = growth.draw("small sends")
        rate, note = sent * VALUE_BYTES / took_s / 1e6, f"{sent:,} messages in {took_s:.0f} s; {page}"
        yield Figure("small sends, taken in", rate, "MB/s", 20 * 0.98, ">=", note)
        amplification = size / (sent * VALUE_BYTES)
        yield Figure("their bytes on disk at the end, over those sent", amplification, "x", 3, "<=", f"{files} files")


def _send(mq: lakemq.engine.client.connection.Connection, duration_s: float) -> int:
    """At the rate, as long; returns how many, all of them acknowledged."""
    random, sent = os.urandom(DISTINCT), 0
    last = DISTINCT - VALUE_BYTES
    began_s = time.monotonic()
    with mq.producer() as producer:
        while (now_s := time.monotonic() - began_s) < duration_s:
            while sent < now_s * A_SECOND:
                at = sent * 7919 % last
                producer.send("t", random[at : at + VALUE_BYTES], key=b"%d" % (sent % 10_000))
                sent += 1
            time.sleep(SLICE_S)
        producer.flush()
    return sent
