"""Final messages: decide that ranges of messages are in files of `final_messages`.

Invariants: `final_offset` of a partition only grows, and never passes its last stable offset. Each range begins where
the one before has ended. So each committed message is in one file, once, and of two writers the second one is refused.
"""

from __future__ import annotations

from ..errors import InvalidRequest
from ..values.base import Done
from ..values.decision import Decision, DecisionInputs
from ..values.finals import RangesFinalized, RangesWritten, find_range_ends
from ..values.journal import JournalEntry
from ..values.segments import Segments
from ..values.state import State
from .registries import Folds, Rules


def decide_final_ranges(state: State, written: RangesWritten, inputs: DecisionInputs) -> Decision:
    """Accept the files. If the topic or its log has changed meanwhile, they are left over.

    Raises InvalidRequest: a range does not begin at the final offset, or ends beyond the last stable offset.
    """
    topic = state.topics.get(written.topic_id)
    if topic is None:
        return Decision(Done())
    stable = topic.last_stable_offsets
    for partition, (first, end) in find_range_ends(written.ranges).items():
        topic.find_partition(partition)
        final = int(topic.final_offsets[partition])
        if first != final or end > stable[partition]:
            raise InvalidRequest(
                f"These offsets of {topic.topic}-{partition} cannot become final now.",
                found=f"{first} to {end - 1}",
                expected=f"from {final}, below {stable[partition]}",
            )
    record = RangesFinalized(topic.topic_id, topic.topic, written.files, written.ranges)
    return Decision(Done(), (JournalEntry(record),))


def advance_final_offsets(state: State, record: RangesFinalized, segments: Segments) -> None:
    for partition, (_, end) in find_range_ends(record.ranges).items():
        state.change_partition(record.topic_id, partition).final_offsets[partition] = end


DECIDE: Rules = {RangesWritten: decide_final_ranges}
EVOLVE: Folds = {RangesFinalized: advance_final_offsets}
TIMERS = ()
