"""A process dies at every named point, and at random moments. No message is lost, doubled, moved or half done."""

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
    PATIENCE_S,
    QUICK,
    TOPIC,
    Processes,
    Publishing,
    assert_killed,
    kill_one,
    settings_that_reach,
    terminate,
    until,
)
from targets import extended_but, nightly_but

import lakemq
from lakemq.engine.namespace.processes import crash

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
    "projector.table_rows_written": 5,
    "projector.table_appended": 5,
    "projector.tables_appended": 4,
    "projector.watermark_written": 3,
    "housekeeping.merged_file_written": 2,
    "housekeeping.files_swapped": 3,
    "housekeeping.checkpointed": 4,
    "housekeeping.step_removed": 20,
    **dict.fromkeys(MERGING_POINTS, 2),
}
"""Point -> the arrival at which the sequencer dies there, in the middle of its work."""

QUICKLY = ("sequencer.step_put", "projector.table_appended")
"""Points right after the two writes on which all others rest: the put of a step, and the commit of a table."""

IN_CI = (
    *QUICKLY,
    "sequencer.elected",
    "sequencer.step_landed",
    "sequencer.answered",
    "projector.messages_registered",
    "projector.table_rows_written",
    "housekeeping.files_swapped",
    "housekeeping.checkpointed",
)
"""A point of each kind of write. tests/stateful tests deaths of leaders and of merges at all points, in one process."""

PUBLISHER_POINTS = ("publish.file_written", "publish.letter_put")
RESIGNED = "sequencer.resigned"
KILLS = 8


def test_every_point_is_tested():
    """Each crash point is in a test. Those of Spark's jobs are in tests/spark/test_microbatch.py."""
    covered = {point for point in crash.POINTS if not point.startswith(("inbox.", "stream."))}
    assert covered == {*SEQUENCER_POINTS, *PUBLISHER_POINTS, RESIGNED}


@pytest.mark.parametrize("point", extended_but(QUICKLY, nightly_but(IN_CI, SEQUENCER_POINTS)))
def test_a_sequencer_dies_at(point: str, family: Processes):
    with publishers(family.path) as (repeating, waiting):
        assert_killed(family.serve(crash_at=f"{point}:{SEQUENCER_POINTS[point]}", **settings_that_reach(point)))
        successor = family.serve()
        repeating.wait_for(8)
        waiting.wait_for(8)
    terminate(successor)
    check_all(family.path, TOPIC, [*repeating.acknowledged, *waiting.acknowledged])


@pytest.mark.extended
def test_a_sequencer_dies_after_handing_over_its_lease(family: Processes):
    with publishers(family.path) as (repeating, waiting):
        first = family.serve(crash_at=RESIGNED)
        repeating.wait_for(3)
        first.terminate()
        assert_killed(first)
        successor = family.serve()
        repeating.wait_for(3)
        waiting.wait_for(3)
    terminate(successor)
    check_all(family.path, TOPIC, [*repeating.acknowledged, *waiting.acknowledged])


@contextmanager
def publishers(path: str) -> Iterator[tuple[Publishing, Publishing]]:
    """Start two publishers: one that repeats unanswered requests, on a line, and one that only waits, by the
    mailbox.
    """
    with (
        Publishing(path, "p", QUICK) as repeating,
        Publishing(path, "q", QUICK, idempotent=False, by_mailbox=True) as waiting,
    ):
        yield repeating, waiting


@pytest.mark.parametrize("point", extended_but(["publish.letter_put"], PUBLISHER_POINTS))
def test_a_publisher_dies_at(point: str, family: Processes):
    """The publisher starts again and repeats the unacknowledged message, under the same txn_version."""
    count, inline = 12, {"inline.max.bytes": 0} if point == "publish.file_written" else {}
    with lakemq.connect(family.path, config=QUICK) as mq:
        mq.serving()
        assert_killed(family.publish("p", count, "application", crash_at=f"{point}:7", **inline))
        assert 0 < len(family.read_acknowledgements("p")) < count
        assert family.publish("p", count, "application", **inline).wait(PATIENCE_S) == 0
    acknowledged = family.read_acknowledgements("p")
    assert len(acknowledged) == count
    assert check_all(family.path, TOPIC, acknowledged).num_rows == count


class LogWatcher(threading.Thread):
    """A reader that reads everything again and again. Messages must stay where they are, and none may come twice."""

    def __init__(self, path: str) -> None:
        super().__init__(name="reader")
        self._path = path
        self.stop = threading.Event()
        self.reads, self.error = 0, None
        self._before: dict[tuple[int, int], bytes] = {}

    def run(self) -> None:
        try:
            with lakemq.connect(self._path) as mq:
                while not self.stop.wait(0.05):  # other processes need the machine, too
                    self._look(mq)
        except BaseException as error:
            self.error = error

    def _look(self, mq: Any) -> None:
        messages = mq.fetch(TOPIC).to_arrow()
        columns = (messages.column(c).to_pylist() for c in ("partition", "offset", "value"))
        current = {(partition, offset): value for partition, offset, value in zip(*columns, strict=True)}
        assert len(set(current.values())) == len(current) == messages.num_rows, "a message came twice"
        changed = {
            place: (value, current.get(place)) for place, value in self._before.items() if current.get(place) != value
        }
        assert not changed, f"messages vanished or moved: {dict(list(changed.items())[:3])}"
        for partition in {p for p, _ in current}:
            log = [value.decode() for (p, _), value in current.items() if p == partition]
            assert_in_order(partition, log)
            assert [o for p, o in current if p == partition] == list(range(len(log)))
        self._before, self.reads = current, self.reads + 1


@pytest.mark.nightly
def test_sequencers_die_at_random_under_load(family: Processes):
    chance, watching = random.Random(7), LogWatcher(family.path)
    with publishers(family.path) as (repeating, waiting):
        watching.start()
        serving = [family.serve(), family.serve()]
        for _ in range(KILLS):
            time.sleep(chance.uniform(0.05, 0.8))
            kill_one(serving, chance)
            serving.append(family.serve())
        repeating.wait_for(5)
        waiting.wait_for(5)
        until(lambda: watching.reads >= 20 or watching.error is not None, "reads")
        watching.stop.set()
        watching.join(30)
    for child in serving:
        terminate(child)
    assert watching.error is None, watching.error
    check_all(family.path, TOPIC, [*repeating.acknowledged, *waiting.acknowledged])


def test_a_crash_point_that_is_none_is_refused():
    with pytest.raises(ValueError, match=r"names no crash point: found 'sequencer\.lunch'"):
        crash.from_environment({crash.VARIABLE: "sequencer.lunch:2"})
