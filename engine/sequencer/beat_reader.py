"""Read the heartbeats of a namespace: those that have come on lines, and those that are objects in the store."""

from __future__ import annotations

import logging
from typing import NamedTuple

from lakemq.tables.storage.coordination.beats import Beats

from ..namespace.processes.clock import Clock
from ..namespace.processes.process_identity import is_process_gone, new_id, read_own_identity
from ..protocol.codec.beat import MemberBeat, decode_beat, encode_beat
from .letters.line_beats import LineBeats

log = logging.getLogger("lakemq.serve")

MemberKey = tuple[str, str]
"""Group and member id."""


class NewestBeat(NamedTuple):
    """The newest beat of a process.

    number: grows with each beat; members: None if the process replaced the beat while it was read; age_ms: by the
    store's clock in the first reading of a term, 0 in all others.
    """

    number: int
    members: list[MemberBeat] | None
    age_ms: int


class BeatReading(NamedTuple):
    """The result of reading all beats.

    began_ms, ended_ms: by the leader's steady clock; beats: by the id of their process's beats; gone: identities of
    processes that have certainly ended; has_objects: whether objects were read, and not only lines.
    """

    began_ms: int
    ended_ms: int
    beats: dict[str, NewestBeat]
    gone: set[str]
    has_objects: bool = True


class BeatReader:
    """Reads heartbeats for one term of leadership, in a thread of its own.

    Attributes:
        line_beats: the beats that have come on lines. None: there are no lines.
    """

    def __init__(self, beats: Beats, clock: Clock) -> None:
        self._beats, self._clock = beats, clock
        self.line_beats: LineBeats | None = None
        self._notes: set[str] = set()
        """Ids of beats that this leader has written for members without any."""

    def read(
        self, abandoned: list[str], first_members: set[MemberKey] | None, processes: set[str], needs_objects: bool
    ) -> BeatReading:
        """Read all beats, and delete the abandoned ones.

        Args:
            abandoned: ids of beats.
            first_members: all members in the first reading of a term, else None. A member without a beat gets one,
                which tells the next leader for how long it has had none.
            processes: identities of the members' processes.
            needs_objects: whether to read objects, too, and not only lines.
        """
        began_ms = self._clock.steady_ms()
        # read the store's time before the beats: if this process stops in between, beats seem younger, never older
        store_ms = self._read_store_time() if first_members is not None else None
        own = read_own_identity() if self._beats.is_on_local_disk else ""
        beats: dict[str, NewestBeat] = {}
        objects = self._beats.read_newest() if needs_objects else {}
        for beats_id, (number, body) in objects.items():
            if beats_id in self._notes:
                continue
            members = None if body is None else _decode_members(body)
            age_ms = 0 if store_ms is None else self._read_age_ms(beats_id, number, store_ms)
            beats[beats_id] = NewestBeat(number, members, age_ms)
        for beat in [] if self.line_beats is None else self.line_beats.read_all():
            if beat.beats_id not in beats or beats[beat.beats_id].number < beat.number:
                beats[beat.beats_id] = NewestBeat(beat.number, beat.members, 0)
        gone = {process for process in processes if is_process_gone(process, own)}
        if first_members and all(beat.members is not None for beat in beats.values()):
            named = {(beating.group, beating.member_id) for beat in beats.values() for beating in beat.members or ()}
            self._put_note(sorted(first_members - named))
        if abandoned:
            self._beats.forget(abandoned)
        return BeatReading(began_ms, self._clock.steady_ms(), beats, gone, needs_objects)

    def _read_store_time(self) -> int | None:
        try:
            return self._beats.time_ms()
        except OSError as error:
            log.warning("The store's time cannot be read, so sessions of members start again: %s", error)
            return None

    def _read_age_ms(self, beats_id: str, number: int, store_ms: int) -> int:
        modified_ms = self._beats.modified_ms(beats_id, number)
        return 0 if modified_ms is None else max(0, store_ms - modified_ms)

    def _put_note(self, keys: list[MemberKey]) -> None:
        """Put one beat in the name of members without any, so that the next leader sees since when they have had none.

        Such a member's first beat never landed, or it closed without leaving: it is static, or its request was lost.
        """
        if not keys:
            return
        note = new_id()
        self._notes.add(note)
        try:
            self._beats.put(note, 1, encode_beat([MemberBeat(*key, 0) for key in keys]))
        except OSError as error:
            log.warning("Members without a beat could not be noted: %s", error)


def _decode_members(body: bytes) -> list[MemberBeat]:
    try:
        return decode_beat(body)
    except ValueError:  # not written by a member: any user may put a file there
        return []
