"""Bytes and files on the disk after a steady stream of small messages, with default settings."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator

from figures import Figure
from growth import files_and_bytes, watch_growth
from serving import run_sequencer

import lakemq

VALUE_BYTES = 1000
A_SECOND = 20_000
"""Messages: 20 MB of values."""
SLICE_S = 0.05
DISTINCT = 64 << 20
"""Length of the random bytes from which values are cut, so long that values do not compress."""


def run(duration_s: float) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder, run_sequencer(folder):
        with lakemq.connect(folder) as mq, watch_growth(folder) as growth:
            mq.topics.create("t", partitions=8)
            start_s = time.monotonic()
            sent = _send(mq, duration_s)
            took_s = time.monotonic() - start_s
        files, size = files_and_bytes(folder)
        page = growth.draw("small sends")
        rate, note = sent * VALUE_BYTES / took_s / 1e6, f"{sent:,} messages in {took_s:.0f} s; {page}"
        yield Figure("small sends, taken in", rate, "MB/s", 20 * 0.98, ">=", note)
        amplification = size / (sent * VALUE_BYTES)
        yield Figure("their bytes on disk at the end, over those sent", amplification, "x", 3, "<=", f"{files} files")


def _send(mq: lakemq.engine.client.connection.Connection, duration_s: float) -> int:
    """Send at the rate for so long, and return how many messages were acknowledged."""
    random, sent = os.urandom(DISTINCT), 0
    last = DISTINCT - VALUE_BYTES
    start_s = time.monotonic()
    with mq.producer() as producer:
        while (now_s := time.monotonic() - start_s) < duration_s:
            while sent < now_s * A_SECOND:
                position = sent * 7919 % last
                producer.send("t", random[position : position + VALUE_BYTES], key=b"%d" % (sent % 10_000))
                sent += 1
            time.sleep(SLICE_S)
        producer.flush()
    return sent
