"""The members of this process whose consumers are open: where each was made, and how one without a consumer ends.

A program often loses a consumer without closing it: a notebook cell that runs again binds its name to a new one. The
old member sends heartbeats and does not poll, so it would keep its partitions for max_poll_interval_ms. So a member
leaves its group when its consumer is garbage, and a second consumer of the group hears of the first one at once.

The collector may run in any thread, at any line, under any lock. So it only puts the member into a queue. The thread of
the heartbeats, which knows all members of a connection, takes it from there and closes it in a thread of its own.
"""

from __future__ import annotations

import linecache
import logging
import os
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol

from ...protocol.values.state import State

log = logging.getLogger("lakemq.consumer")

_ENGINE = __name__.partition(".client.")[0]
_SHOWN_PARTITIONS, _SHOWN_CHARACTERS = 3, 80


class _Member(Protocol):
    """The part of a `Member` that is used here. Its module imports this one, by way of the membership."""

    @property
    def member_id(self) -> str: ...

    @property
    def is_in_group(self) -> bool: ...

    def silence(self) -> None: ...


class OpenMember:
    """What a consumer needs to leave its group. It does not refer to the consumer, which can so become garbage.

    Attributes:
        origin: the line of the program that made the consumer. The file of a notebook's cell says little to people, so
            the line has its text.
    """

    def __init__(self, group: str, member: _Member, close: Callable[[bool | None], object]) -> None:
        """close: closes the consumer, as `MemberConsumer.close` says."""
        self._group, self._member, self._close = group, member, close
        self._is_closing = False
        self._file, self._line = _find_caller()
        source = linecache.getline(self._file, self._line).strip()[:_SHOWN_CHARACTERS]
        self.origin = f"{self._file}:{self._line}" + (f" ({source})" if source else "")
        self._finalizer: weakref.finalize[Any, Any] | None = None

    @property
    def member_id(self) -> str:
        return self._member.member_id

    @property
    def has_consumer(self) -> bool:
        """Whether the program can still poll or close the consumer."""
        return self._finalizer is not None and self._finalizer.alive

    @property
    def has_to_leave(self) -> bool:
        """Whether the member is in its group, or waits for the answer to its leave."""
        return self._member.is_in_group or self._is_closing

    def close(self, leave: bool | None = None) -> None:
        """Close the consumer. See `MemberConsumer.close`."""
        self._is_closing = True
        try:
            self._close(leave)
        finally:
            self._is_closing = False
            with _lock:  # a static member stays in its group, but nobody can poll or close it here
                _open_members.discard(self)

    def watch(self, consumer: object, abandoned: SimpleQueue[OpenMember]) -> None:
        """Put the member into the queue when this consumer is garbage and has not left the group."""
        self._finalizer = weakref.finalize(consumer, self._abandon, abandoned)
        self._finalizer.atexit = False
        with _lock:
            _open_members.add(self)

    def _abandon(self, abandoned: SimpleQueue[OpenMember]) -> None:
        """Run in the collector: `SimpleQueue.put` is made for that, and takes no lock that this thread may hold."""
        if self._member.is_in_group:
            abandoned.put(self)

    def close_abandoned(self) -> None:
        """Leave the group for a consumer that is garbage."""
        log.warning(
            "Group %s: the consumer that was made at %s is gone without a call of `close`. Its member %s leaves the"
            " group. Keep a consumer while you use its messages, and close it, or use `with`.",
            self._group,
            self.origin,
            self.member_id,
        )
        self._member.silence()
        try:
            self.close()
        except Exception:  # a thread of its own runs this, and no caller is left
            log.warning("Group %s: member %s could not leave.", self._group, self.member_id, exc_info=True)

    def warn_of_others(self, query_groups: Callable[[Callable[[State], list[OpenMember]]], list[OpenMember]]) -> None:
        """Warn if this process has other open consumers of the group, in the log and where a notebook shows it."""
        if len(_open_members) < 2:
            return
        others = query_groups(lambda state: _list_others(state, self._group, self.member_id))
        origins = [other.origin for other in others if other.has_consumer]
        if not origins:
            return
        sentence = (
            f"This process has {len(origins) + 1} open consumers of the group {self._group}. The one before was made at"
            f" {origins[-1]}. It keeps its partitions until it is closed, also if nothing polls it. Close it, or use"
            " `with`. If threads poll these consumers side by side, ignore this warning."
        )
        if log.hasHandlers():  # else logging would print the same sentence
            log.warning("%s", sentence)
        warnings.warn_explicit(sentence, UserWarning, self._file, self._line)


def describe_holders(state: State, group: str, member_id: str) -> list[str]:
    """Return a sentence for each other consumer of this process that has partitions of the group."""
    sentences = []
    for other in _list_others(state, group, member_id):
        topic_partitions = state.groups[group].list_partitions_of(other.member_id)
        names = [f"{state.topics[tp[0]].topic}-{tp[1]}" for tp in topic_partitions[:_SHOWN_PARTITIONS]]
        more = len(topic_partitions) - len(names)
        if names:
            sentences.append(
                f"Another consumer of this process, made at {other.origin} (member {other.member_id}), holds"
                f" {', '.join(names)}{f' and {more} more partitions' if more else ''}. Poll it, or close it."
            )
    return sentences


def _list_others(state: State, group: str, member_id: str) -> list[OpenMember]:
    """Return the other members of the group that this process has."""
    with _lock:
        open_members = list(_open_members)
    members = state.groups[group].members if group in state.groups else {}
    others = [other for other in open_members if other.member_id in members and other.member_id != member_id]
    return sorted(others, key=lambda other: members[other.member_id].number)


def _find_caller() -> tuple[str, int]:
    """Return the file and the line that called the engine."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith(_ENGINE):
        frame = frame.f_back
    return frame.f_code.co_filename, frame.f_lineno


_lock = threading.Lock()
_open_members: weakref.WeakSet[OpenMember] = weakref.WeakSet()


def _forget_all() -> None:
    global _lock
    _lock = threading.Lock()
    _open_members.clear()


os.register_at_fork(after_in_child=_forget_all)
