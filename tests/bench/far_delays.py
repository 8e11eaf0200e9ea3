"""Millions of messages that wait, each sent alone, over a year: memory and start of the sequencer, cancels, and steps.

Their rows are written into `delayed` as a projection writes them, because sending ten million one by one takes an hour.
"""

import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
from figures import Figure, median, percentile
from serving import run_sequencer

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.load import read_watermark
from lakemq.tables.specs.messages import DELAYED, HOUR_MS

YEAR_MS = 365 * 24 * HOUR_MS
FILE_RANGES = 50_000
PIECE = 1_000_000
CANCELS = 100


def run(count: int) -> Iterator[Figure]:
    with tempfile.TemporaryDirectory(prefix="lakemq-bench-") as folder:
        with run_sequencer(folder) as sequencer, lakemq.connect(folder) as mq:
            mq.topics.create("w", 8)
            receipts = _schedule_far(mq)
            _answer_s(mq)
            empty_mib, empty_s = _memory_mib(sequencer.pid), _processor_s(sequencer.pid)
        write_far_ranges(folder, count)
        yield from _with_all(folder, count, empty_mib, empty_s, receipts)


def write_far_ranges(folder: str, count: int) -> None:
    """Write the rows of this many ranges into the table, a million at a time, with the commit that a projection makes.

    The namespace has the topic `w`, and no sequencer.
    """
    with lakemq.connect(folder) as mq:
        step = read_watermark(mq.namespace.store).step
        topic_id, rng = mq.topics.describe("w").topic_id, np.random.default_rng(1)
        for first in range(0, count, PIECE):
            handle = mq.namespace.store.open(DELAYED)
            handle.append_at(handle.version, build_rows(topic_id, step, first, min(PIECE, count - first), rng), step)


def _with_all(folder: str, count: int, empty_mib: float, empty_s: float, receipts: list[str]) -> Iterator[Figure]:
    start_s = time.perf_counter()
    with run_sequencer(folder) as sequencer, lakemq.connect(folder) as mq:
        _answer_s(mq)
        note = f"{_processor_s(sequencer.pid):.1f} s of processor time; {empty_s:.1f} s in an empty namespace"
        yield Figure(
            f"{count:,} wait: a sequencer starts, and answers", time.perf_counter() - start_s, "s", 15, "<=", note
        )
        more_mib = _settled_memory_mib(sequencer.pid) - empty_mib
        note = f"{empty_mib:.0f} MiB without them"
        yield Figure(f"{count:,} wait: memory of the sequencer for them", more_mib, "MiB", 150, "<=", note)
        took_ms = []
        for receipt in receipts:
            cancel_start_s = time.perf_counter()
            assert mq.delayed.cancel(receipt) == "cancelled"
            took_ms.append((time.perf_counter() - cancel_start_s) * 1e3)
        note = f"longest {max(took_ms):.0f} ms"
        yield Figure("cancelling one that is due in a year, p50", median(took_ms), "ms", 20, "<=", note)
        # some are due soon, so steps queue them meanwhile
        answers_ms = [_answer_s(mq) * 1e3 for _ in range(1000)]
        note = f"longest {max(answers_ms):.0f} ms, p50 {median(answers_ms):.1f} ms"
        yield Figure("an answer meanwhile, p99", percentile(answers_ms, 0.99), "ms", 20, "<=", note)


def _schedule_far(mq: Connection) -> list[str]:
    return [mq.delayed.schedule("w", "x", delay_ms=YEAR_MS - HOUR_MS) for _ in range(CANCELS)]


def build_rows(topic_id: int, step: int, first: int, count: int, rng: np.random.Generator) -> pa.Table:
    """Build ranges of one message each, in files of FILE_RANGES, as a merge of the table leaves them."""
    number, now_ms = np.arange(first, first + count), time.time_ns() // 1_000_000
    due_ms = (now_ms + HOUR_MS // 6 + rng.integers(0, YEAR_MS, count)) // 1000 * 1000
    file_ids = np.random.default_rng(2).integers(0, 2**62, first // FILE_RANGES + count // FILE_RANGES + 1)
    sent_ms = now_ms - 10**7 + number // 10
    constants = {
        "step": step,
        "topic_id": topic_id,
        "topic": "w",
        "footer_hash": None,
        "reschedules": 0,
        "record_count": 1,
        "has_ttl": False,
        "producer_id": 0,
        "producer_epoch": 0,
        "transactional_id": None,
        "waiting_count": 1,
        "released_count": 0,
        "cancelled_rows": None,
        "rescheduled_rows": None,
        "state": "waiting",
        "changed_by": None,
        "removed": False,
    }
    columns = {
        "partition": number % 8,
        "due_hour": due_ms // HOUR_MS,
        "file_id": file_ids[number // FILE_RANGES],
        "first_row": number % FILE_RANGES,
        "first_due_ms": due_ms,
        "last_due_ms": due_ms,
        "min_timestamp_ms": sent_ms,
        "max_timestamp_ms": sent_ms,
        "scheduled_step": 1 + number // 20,
        "position": number % 20,
        "changed_at_ms": sent_ms,
    }
    arrays = [
        pa.array(columns[field.name]).cast(field.type)
        if field.name in columns
        else pa.repeat(pa.scalar(constants[field.name], field.type), count)
        for field in DELAYED.stored_schema
    ]
    table = pa.Table.from_arrays(arrays, schema=DELAYED.stored_schema)
    return table.sort_by([(name, "ascending") for name in DELAYED.sort_by])


def _answer_s(mq: Connection) -> float:
    start_s = time.perf_counter()
    mq.topics.alter("w", {})
    return time.perf_counter() - start_s


def _settled_memory_mib(pid: int) -> float:
    """Return the memory after the sequencer has given back unused memory, which it does every two seconds."""
    samples_mib = []
    for _ in range(10):
        time.sleep(0.5)
        samples_mib.append(_memory_mib(pid))
    return min(samples_mib)


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _memory_mib(pid: int) -> float:
    """Return the memory of the process itself, without files of libraries, which it shares."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.split("RssAnon:")[1].split()[0]) / 1024
