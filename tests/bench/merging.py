"""What is left of many small publishes: files and bytes of the namespace, and what a fetch of them takes.

Messages are sent one by one, each in a step of its own. Then the leader tidies up, with nothing kept for who reads
what was replaced: what is left is compared with the same messages published at once.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from figures import Figure, median, seconds

import lakemq
from lakemq.engine.maintenance import housekeeping
from lakemq.tables.specs.registry import TABLES

PARTITIONS = 8
VALUE = b"x" * 92
SETTINGS = {"merge.grace.ms": 0, "reader.grace.ms": 1000, "journal.retention.ms": 0, "lease.ms": 1500}
LONGEST_S = 90


def run(messages: int) -> Iterator[Figure]:
    _keep_nothing()
    keys = [b"k%d" % (i % PARTITIONS) for i in range(messages)]
    with tempfile.TemporaryDirectory() as folder:
        single, whole = f"{folder}/single", f"{folder}/whole"
        with lakemq.connect(single, create=True, config=SETTINGS) as mq, mq.serving():
            mq.topics.create("t", partitions=PARTITIONS)
            tables = {key: pa.table({"key": [key], "value": [VALUE]}) for key in set(keys)}
            for key in keys:
                mq.publish("t", tables[key])
            at_once_s = _fetch_s(single, messages)
            busy = _files(single)
            left = _tidied(single)
        yield Figure("fetch of single messages at once", at_once_s, "s", 0.5, "<=", f"{messages} messages")
        yield Figure("files after housekeeping", left[0], "files", 300, "<=", f"{busy[0]} before")
        yield Figure("bytes after housekeeping", left[1] / 1e6, "MB", 12, "<=", f"{busy[1] / 1e6:.1f} before")
        with lakemq.connect(whole, create=True) as mq, mq.serving():
            mq.topics.create("t", partitions=PARTITIONS)
            mq.publish("t", pa.table({"key": keys, "value": [VALUE] * messages}))
        # in turn, so that both see the same drift of the machine
        pairs = [(_fetch_s(single, messages), _fetch_s(whole, messages)) for _ in range(9)]
        single_s, whole_s = (median(column) for column in zip(*pairs, strict=True))
        ratio, note = single_s / whole_s, f"{single_s * 1000:.1f} and {whole_s * 1000:.1f} ms"
        yield Figure("fetch of single messages / of one batch", ratio, "x", 2, "<=", note)


def _keep_nothing() -> None:
    """Housekeeping as it is in hours, within seconds."""
    housekeeping.QUIET_MS, housekeeping.CLEAN_MS, housekeeping.LOAD_MS = 3000, 1000, 3000
    for spec in TABLES:
        vars(spec)["log_retention_ms"] = vars(spec)["replaced_retention_ms"] = 0


def _fetch_s(path: str, messages: int) -> float:
    """Of who has just come, and knows the topics already."""
    with lakemq.connect(path) as mq:
        mq.state()
        took_s = seconds(lambda: mq.fetch("t").to_arrow())
        assert mq.fetch("t").record_count == messages
        return took_s


def _files(path: str) -> tuple[int, int]:
    """How many files there are, and their bytes."""
    sizes = []
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            sizes.append(file.stat().st_size if file.exists() else 0)
    return len(sizes), sum(sizes)


def _tidied(path: str) -> tuple[int, int]:
    """The fewest files in a while, with their bytes: the lease and the watermark go on making some."""
    fewest, deadline_s = _files(path), time.monotonic() + LONGEST_S
    last_s = time.monotonic()
    while time.monotonic() < min(deadline_s, last_s + 20):
        time.sleep(0.5)
        found = _files(path)
        if found[0] < fewest[0]:
            fewest, last_s = found, time.monotonic()
    return fewest
