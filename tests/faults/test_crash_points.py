"""A process dies at every named point, and at random moments: nothing is lost, doubled, moved or half done."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from faults.checks import assert_in_order, check_all
from faults.processes import (
    MERGING_POINTS,
    QUICK,
    TOPIC,
    Processes,
    Publishing,
    assert_killed,
    kill_one,
    on_the_way_to,
    terminate,
    until,
)
from targets import extended_but

import lakemq
from lakemq.engine.namespace import crash

SEQUENCER_POINTS = {
    "sequencer.elected": 1,
    "sequencer.letters_taken": 20,
    "sequencer.rows_written": 5,
    "sequencer.step_put": 8,
    "sequencer.step_landed": 7,
    "sequencer.answered": 6,
    "sequencer.letters_discarded": 6,
    "projector.rows_written": 3,
    "projector.messages_registered": 3,
    "projector.table_appended": 5,
    "projector.tables_appended": 4,
    "projector.watermark_written": 3,
    "housekeeping.merged_file_written": 2,
    "housekeeping.files_swapped": 3,
    "housekeeping.checkpointed": 4,
    "housekeeping.step_removed": 20,
    **dict.fromkeys(MERGING_POINTS, 2),
}
"""Point -> at which arrival the sequencer dies there: in the middle of things."""

OFTEN = ("housekeeping.segments_swapped", "housekeeping.old_removed")
"""Of the points of a merge, which comes by seldom. At each of them one dies, and stops, in tests/stateful, too."""

AFTER_A_MINUTE = "housekeeping.step_removed"

QUICKLY = ("sequencer.step_put", "sequencer.step_landed", "projector.table_appended")
"""After what counts: the put of a step, the look behind it, and the append to a table."""

PUBLISHER_POINTS = ("publish.file_written", "publish.letter_put")
RESIGNED = "sequencer.resigned"
KILLS = 8
KILLED_S = 120


def test_every_point_is_tested():
    """Each crash point is in a test. Those of Spark's jobs are in tests/spark/test_microbatch.py."""
    covered = {point for point in crash.POINTS if not point.startswith(("inbox.", "stream."))}
    assert covered == {*SEQUENCER_POINTS, *PUBLISHER_POINTS, RESIGNED}


def long_where_rare(point: str) -> Any:
    rare = point in MERGING_POINTS and point not in OFTEN
    return pytest.param(point, marks=pytest.mark.long) if rare or point == AFTER_A_MINUTE else point


@pytest.mark.parametrize("point", extended_but(QUICKLY, map(long_where_rare, SEQUENCER_POINTS)))
def test_a_sequencer_dies_at(point: str, family: Processes):
    with publishers(family.path) as (one, two):
        assert_killed(family.serve(crash_at=f"{point}:{SEQUENCER_POINTS[point]}", **on_the_way_to(point)), KILLED_S)
        fresh = family.serve()
        one.wait_for(8)
        two.wait_for(8)
    terminate(fresh)
    check_all(family.path, TOPIC, [*one.acknowledged, *two.acknowledged])


@pytest.mark.extended
def test_a_sequencer_dies_after_handing_over_its_lease(family: Processes):
    with publishers(family.path) as (one, two):
        first = family.serve(crash_at=RESIGNED)
        one.wait_for(3)
        first.terminate()
        assert_killed(first)
        fresh = family.serve()
        one.wait_for(3)
        two.wait_for(3)
    terminate(fresh)
    check_all(family.path, TOPIC, [*one.acknowledged, *two.acknowledged])


@contextmanager
def publishers(path: str) -> Iterator[tuple[Publishing, Publishing]]:
    """Start a publisher that repeats what is not answered, on a line, and one that only waits, by the mailbox."""
    with (
        Publishing(path, "p", QUICK) as one,
        Publishing(path, "q", QUICK, idempotent=False, by_mailbox=True) as two,
    ):
        yield one, two


@pytest.mark.parametrize("point", extended_but(["publish.letter_put"], PUBLISHER_POINTS))
def test_a_publisher_dies_at(point: str, family: Processes):
    """The publisher comes back and repeats what was not acknowledged, under the same txn_version."""
    count, inline = 12, {"inline.max.bytes": 0} if point == "publish.file_written" else {}
    with lakemq.connect(family.path, config=QUICK) as mq:
        mq.serving()
        assert_killed(family.publish("p", count, "application", crash_at=f"{point}:7", **inline))
        assert 0 < len(family.acknowledged("p")) < count
        assert family.publish("p", count, "application", **inline).wait(30) == 0
    acknowledged = family.acknowledged("p")
    assert len(acknowledged) == count
    assert check_all(family.path, TOPIC, acknowledged).num_rows == count


class Watching(threading.Thread):
    """Reads everything, again and again: what was there stays where it was, and nothing comes twice."""

    def __init__(self, path: str) -> None:
        super().__init__(name="reader")
        self._path = path
        self.stop = threading.Event()
        self.reads, self.error = 0, None
        self._seen: dict[tuple[int, int], bytes] = {}

    def run(self) -> None:
        try:
            with lakemq.connect(self._path) as mq:
                while not self.stop.wait(0.05):  # those at work need the machine, too
                    self._look(mq)
        except BaseException as error:
            self.error = error

    def _look(self, mq: Any) -> None:
        messages = mq.fetch(TOPIC).to_arrow()
        columns = (messages.column(c).to_pylist() for c in ("partition", "offset", "value"))
        now = {(partition, offset): value for partition, offset, value in zip(*columns, strict=True)}
        assert len(set(now.values())) == len(now) == messages.num_rows, "a message came twice"
        changed = {at: (value, now.get(at)) for at, value in self._seen.items() if now.get(at) != value}
        assert not changed, f"messages vanished or moved: {dict(list(changed.items())[:3])}"
        for partition in {p for p, _ in now}:
            log = [value.decode() for (p, _), value in now.items() if p == partition]
            assert_in_order(partition, log)
            assert [o for p, o in now if p == partition] == list(range(len(log)))
        self._seen, self.reads = now, self.reads + 1


@pytest.mark.long  # half a minute of it
def test_sequencers_die_at_random_under_load(family: Processes):
    chance, watching = random.Random(7), Watching(family.path)
    with publishers(family.path) as (one, two):
        watching.start()
        serving = [family.serve(), family.serve()]
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.8))
            kill_one(serving, chance)
            serving.append(family.serve())
        one.wait_for(5)
        two.wait_for(5)
        until(lambda: watching.reads >= 20 or watching.error is not None, 60, "reads")
        watching.stop.set()
        watching.join(30)
    for child in serving:
        terminate(child)
    assert watching.error is None, watching.error
    check_all(family.path, TOPIC, [*one.acknowledged, *two.acknowledged])


def test_a_crash_point_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"names no crash point: found 'sequencer\.lunch'"):
        crash.from_environment({crash.VARIABLE: "sequencer.lunch:2"})
