"""A process dies at every named point, and at random moments. No message is lost, doubled, moved or half done."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from faults.checks import check_all
from faults.processes import (
    MERGING_POINTS,
    PATIENCE_S,
    QUICK,
    TOPIC,
    Processes,
    Publishing,
    assert_killed,
    settings_that_reach,
    terminate,
)
from targets import extended_but, nightly_but

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
    "projector.table_rows_written": 5,
    "projector.table_appended": 5,
    "projector.tables_appended": 4,
    "projector.watermark_written": 3,
    "projector.final_messages_synced": 3,
    "finalizing.announced": 3,
    "finalizing.file_written": 3,
    "finalizing.files_rewritten": 1,
    "finalizing.segments_swapped": 1,
    "finalizing.segments_switched": 1,
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


def test_every_crash_point_has_a_test():
    """Each crash point is in a test. Those of Spark's jobs are in tests/spark/test_microbatch.py."""
    covered = {point for point in crash.POINTS if not point.startswith(("inbox.", "stream."))}
    assert covered == {*SEQUENCER_POINTS, *PUBLISHER_POINTS, RESIGNED}


@pytest.mark.parametrize("point", extended_but(QUICKLY, nightly_but(IN_CI, SEQUENCER_POINTS)))
def test_sequencer_killed_at_point_loses_no_message(point: str, family: Processes):
    with publishers(family.path) as (repeating, waiting):
        assert_killed(family.serve(crash_at=f"{point}:{SEQUENCER_POINTS[point]}", **settings_that_reach(point)))
        successor = family.serve()
        repeating.wait_for(8)
        waiting.wait_for(8)
    terminate(successor)
    check_all(family.path, TOPIC, [*repeating.acknowledged, *waiting.acknowledged])


@pytest.mark.extended
def test_standby_leads_when_a_sequencer_is_killed_after_its_handover(family: Processes):
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
def test_publisher_killed_at_point_goes_on_without_doubling(point: str, family: Processes):
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


def test_unknown_crash_point_is_refused():
    with pytest.raises(ValueError, match=r"names no crash point: found 'sequencer\.lunch'"):
        crash.from_environment({crash.VARIABLE: "sequencer.lunch:2"})
