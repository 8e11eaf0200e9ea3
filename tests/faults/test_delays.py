"""Sequencers die while messages wait and are released. Each message comes once, none early, a cancelled one never
(I9).
"""

import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from faults.checks import check_projections
from faults.processes import QUICK, Child, Processes, assert_killed, kill_one, settings_that_reach, terminate, until
from targets import extended_but, nightly_but

import lakemq
from lakemq.engine.client.connection import Connection

POINTS = {
    "sequencer.step_put": 8,
    "sequencer.step_landed": 9,
    "sequencer.answered": 6,
    "projector.rows_written": 2,
    "projector.messages_registered": 3,
    "projector.table_appended": 9,
    "projector.watermark_written": 3,
}
IN_CI = ("sequencer.step_put", "projector.table_appended", "at random, packed")
WAVES, WAVE = 12, 6
STAMPED = {"message.timestamp.type": "LogAppendTime", "delay.slot.ms": 40}
"""With these settings the timestamp of a message is the time of its release."""


@pytest.mark.parametrize(
    "point", extended_but(["sequencer.step_put"], nightly_but(IN_CI, [*POINTS, "at random", "at random, packed"]))
)
def test_delayed_messages_come_once_though_sequencers_are_killed(point: str, family: Processes) -> None:
    chance = random.Random(point)
    crash_at = f"{point}:{POINTS[point]}" if point in POINTS else None
    packing: dict[str, Any] = {"packs": True, "delay.load.ahead.ms": 50} if point == "at random, packed" else {}
    with lakemq.connect(family.path, config={**QUICK, "request.timeout.ms": 30_000}) as mq:
        serving = [family.serve(crash_at=crash_at, **settings_that_reach(point), **packing)]
        mq.topics.create("later", 2, config=STAMPED)  # so that the first one leads
        serving.append(family.serve(**packing))
        sent, cancelled = publish_waves(mq, chance, lambda: kill_some(serving, family, point, chance, packing))
        due = len(sent) - len(cancelled)
        until(lambda: sum(mq.end_offsets("later").values()) >= due, "the release of all")
        if crash_at is not None:
            assert_killed(serving.pop(0))
        for child in serving:
            terminate(child)
    with lakemq.connect(family.path) as mq:
        mq.step_until_idle(wait_ms=20_000)
        rows = mq.fetch("later").to_arrow().select(["value", "timestamp"]).to_pylist()
        assert Counter(row["value"].decode() for row in rows) == Counter(sent.keys() - cancelled)
        early = [row for row in rows if row["timestamp"].timestamp() * 1000 < sent[row["value"].decode()]]
        assert not early
        assert mq.delayed.all() == []
        check_projections(mq)


@pytest.mark.extended
def test_delayed_messages_come_once_though_release_jobs_are_killed(family: Processes) -> None:
    """Two jobs run at once. One is active, and the other takes over from it."""
    with lakemq.connect(family.path, config={**QUICK, "request.timeout.ms": 30_000}) as mq, mq.serving():
        mq.topics.create("later", 2, config=STAMPED)
        start_ms = time.time_ns() // 1_000_000 + 4_000
        due_ms = {f"{i}": start_ms + 10 * i for i in range(400)}
        mq.publish("later", pa.table({"value": list(due_ms), "deliver_at": list(due_ms.values())}))
        last_ms = max(due_ms.values()) + 40
    jobs = [release_job(family, "--until", str(last_ms)) for _ in range(2)]
    with lakemq.connect(family.path) as mq:
        until(lambda: sum(mq.end_offsets("later").values()) > 50, "the first releases")
        pids = {str(job.pid): job for job in jobs}
        active = pids[mq.state().leader.split("-")[-3]]
        active.kill()
        _, errors = next(job for job in jobs if job is not active).communicate(timeout=60)
        assert "none wait" in errors
        rows = mq.fetch("later").to_arrow().select(["value", "timestamp"]).to_pylist()
        assert Counter(row["value"].decode() for row in rows) == Counter(due_ms.keys())
        assert not [row for row in rows if row["timestamp"].timestamp() * 1000 < due_ms[row["value"].decode()]]
    second_run = release_job(family)
    assert "nothing released; none wait" in second_run.communicate(timeout=60)[1]
    assert second_run.returncode == 0


def release_job(family: Processes, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "lakemq.jobs.release_delayed", "--path", family.path, *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def publish_waves(mq: Connection, chance: random.Random, each: Callable[[], None]) -> tuple[dict[str, int], set[str]]:
    """Publish delayed messages. Return those acknowledged, with when they are due, and those cancelled."""
    sent: dict[str, int] = {}
    cancelled: set[str] = set()
    with mq.producer() as producer:
        for wave in range(WAVES):
            futures = {
                f"{wave}.{i}": producer.send("later", f"{wave}.{i}", delay_ms=chance.choice([0, 50, 300, 900]))
                for i in range(WAVE)
            }
            for value, future in futures.items():
                sent[value] = future.result().deliver_at_ms or 0
            cancelled_value, moved_value = chance.sample(sorted(futures), 2)
            if mq.delayed.cancel(futures[cancelled_value].result().receipt or "") == "cancelled":
                cancelled.add(cancelled_value)
            moved = mq.delayed.reschedule(
                futures[moved_value].result().receipt or "", delay_ms=chance.choice([50, 500])
            )
            if moved.receipt is not None:
                sent[moved_value] = moved.deliver_at_ms or 0
                if chance.random() < 0.3 and mq.delayed.cancel(moved.receipt) == "cancelled":
                    cancelled.add(moved_value)
            each()
    return sent, cancelled


def kill_some(
    serving: list[Child], family: Processes, point: str, chance: random.Random, packing: dict[str, Any]
) -> None:
    if point not in POINTS and chance.random() < 0.4:
        kill_one(serving, chance)
        serving.append(family.serve(**packing))
