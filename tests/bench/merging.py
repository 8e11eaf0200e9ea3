"""Files and bytes that remain of many small publishes, and the time of a fetch of them.

Messages are sent one by one, each in a step of its own. Then the leader tidies up, and keeps no replaced files for slow
readers. The result is compared with the same messages published at once.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
from figures import Figure, median, seconds

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.maintenance import housekeeping
from lakemq.tables.specs.registry import TABLES

PARTITIONS = 8
VALUE = b"x" * 92
SETTINGS = {"merge.grace.ms": 0, "reader.grace.ms": 1000, "journal.retention.ms": 0, "lease.ms": 1500}
LONGEST_S = 90
NEWEST = 20


def run(messages: int) -> Iterator[Figure]:
    _keep_nothing()
    keys = [b"k%d" % (i % PARTITIONS) for i in range(messages)]
    with tempfile.TemporaryDirectory() as folder:
        single, whole = f"{folder}/single", f"{folder}/whole"
        with lakemq.connect(single, create=True, config=SETTINGS) as mq, mq.serving():
            mq.topics.create("t", partitions=PARTITIONS)
            tables = {key: pa.table({"key": [key], "value": [VALUE]}) for key in set(keys)}
            newest_ms = []
            with lakemq.connect(single) as reader:
                for sent, key in enumerate(keys):
                    mq.publish("t", tables[key])
                    if sent in (messages // 40, messages // 2):
                        newest_ms.append((sent, _newest_ms(mq, reader, tables[key])))
            total = messages + NEWEST * len(newest_ms)
            at_once_s = _fetch_s(single, total)
            busy = _files_and_bytes(single)
            remaining = _count_after_housekeeping(single)
        for steps, ms in newest_ms:
            name = f"newest message by one who followed {steps:,} steps"
            yield Figure(name, ms, "ms", 3, "<=", f"median of {NEWEST}")
        yield Figure("fetch of single messages at once", at_once_s, "s", 0.5, "<=", f"{total} messages")
        yield Figure("files after housekeeping", remaining[0], "files", 300, "<=", f"{busy[0]} before")
        yield Figure("bytes after housekeeping", remaining[1] / 1e6, "MB", 12, "<=", f"{busy[1] / 1e6:.1f} before")
        with lakemq.connect(whole, create=True) as mq, mq.serving():
            mq.topics.create("t", partitions=PARTITIONS)
            mq.publish(
                "t", pa.table({"key": [b"k%d" % (i % PARTITIONS) for i in range(total)], "value": [VALUE] * total})
            )
        # in turn, so that both see the same drift of the machine
        pairs = [(_fetch_s(single, total), _fetch_s(whole, total)) for _ in range(9)]
        single_s, whole_s = (median(column) for column in zip(*pairs, strict=True))
        ratio, note = single_s / whole_s, f"{single_s * 1000:.1f} and {whole_s * 1000:.1f} ms"
        yield Figure("fetch of single messages / of one batch", ratio, "x", 2, "<=", note)


def _keep_nothing() -> None:
    """Make housekeeping do within seconds what it does over hours."""
    housekeeping.QUIET_MS, housekeeping.LOAD_MS = 3000, 3000
    for spec in TABLES:
        vars(spec)["log_retention_ms"] = vars(spec)["replaced_retention_ms"] = 0


def _files_and_bytes(path: str) -> tuple[int, int]:
    """Return the number of files, and their bytes."""
    sizes = []
    for folder, _, names in os.walk(path):
        for name in names:
            file = Path(folder, name)
            sizes.append(file.stat().st_size if file.exists() else 0)
    return len(sizes), sum(sizes)


def _newest_ms(mq: Connection, reader: Connection, row: pa.Table) -> float:
    """Return the median milliseconds of a fetch of the newest message, by a reader that follows the log."""
    took_s = []
    for _ in range(NEWEST):
        before = reader.end_offsets("t")
        mq.publish("t", row)
        took_s.append(seconds(lambda: reader.fetch("t", start=before).to_arrow()))  # noqa: B023
    return median(took_s) * 1000


def _fetch_s(path: str, messages: int) -> float:
    """Return the seconds of a fetch of everything, by a new reader that knows the topics already."""
    with lakemq.connect(path) as mq:
        mq.state()
        took_s = seconds(lambda: mq.fetch("t").to_arrow())
        assert mq.fetch("t").record_count == messages
        return took_s


def _count_after_housekeeping(path: str) -> tuple[int, int]:
    """Return the fewest files in a while, with their bytes. The lease and the watermark keep making some."""
    fewest, deadline_s = _files_and_bytes(path), time.monotonic() + LONGEST_S
    last_s = time.monotonic()
    while time.monotonic() < min(deadline_s, last_s + 20):
        time.sleep(0.5)
        current = _files_and_bytes(path)
        if current[0] < fewest[0]:
            fewest, last_s = current, time.monotonic()
    return fewest
