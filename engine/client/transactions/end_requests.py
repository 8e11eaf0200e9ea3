"""The requests that begin and end transactions. Each is sent again while no reply comes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import NamedTuple, TypeAlias, TypeVar

from ...namespace.processes.clock import Clock
from ...protocol.codec.few_rows import Rows
from ...protocol.errors import LakeMQError, RequestTimedOut, StaleTopicMetadata
from ...protocol.values.consuming.offsets import CommitOffsets
from ...protocol.values.kinds import AnyRequest, AnyResult
from ...protocol.values.log import Produce, Published
from ...protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from ...protocol.values.transactions import EndTransaction, TransactionEnded
from ..requests.attempts import NO_EFFECT, ask_with_retries
from ..requests.requester import Requester
from .parts import TransactionParts

Part: TypeAlias = tuple[Produce, Rows | None]
"""A publish that is not sent yet, with the rows that go in its letter."""

R = TypeVar("R")


class CommitReply(NamedTuple):
    """The reply to a commit, and those to the requests that came with it, in their order."""

    end: Future[AnyResult]
    other_replies: list[Future[AnyResult]]

    @property
    def error(self) -> BaseException | None:
        """The error with which the commit was refused; None: the transaction is committed."""
        return self.end.exception()

    def next_ref(self, ref: TransactionRef) -> TransactionRef:
        """Return the transaction that follows the committed one."""
        return build_next_ref(ref, get_result(self.end, TransactionEnded))

    def list_published(self, part_count: int) -> list[Published | None]:
        """Return the results of the first requests; None for a request that was refused, if the commit was, too.

        For a repeated commit, only the end gets a reply again: the places of its parts are unknown.
        """
        unknown = None if self.error is not None else Published([])
        return [
            unknown if answer.exception() else get_result(answer, Published)
            for answer in self.other_replies[:part_count]
        ]

    def find_cause(self, part_count: int) -> BaseException | None:
        """Return the error that makes a refused commit final; None if its refused parts can be built again."""
        errors = [answer.exception() for answer in self.other_replies]
        for index, error in enumerate(errors):
            if error and not (isinstance(error, StaleTopicMetadata) and index < part_count):
                return error
        return None if any(errors) else self.error


class EndRequests:
    """Sends the requests of one transactional id, and waits for their replies."""

    def __init__(self, requester: Requester, clock: Clock, answer_timeout_ms: int, parts: TransactionParts) -> None:
        """answer_timeout_ms: how long a request is tried before giving up; parts: note a request without a reply."""
        self._requester, self._clock, self._parts = requester, clock, parts
        self._answer_timeout_ms = answer_timeout_ms

    def take_id(self, transactional_id: str, timeout_ms: int) -> ProducerDone:
        """Take the id: fence its holder, and abort its open transaction."""
        return self._ask_until_reply(lambda: self._ask(InitProducer(transactional_id, timeout_ms), ProducerDone))

    def abort(self, ref: TransactionRef) -> TransactionRef:
        """Abort the transaction, and return the one that follows."""
        done = self._ask_until_reply(lambda: self._ask(EndTransaction(ref, False), TransactionEnded))
        return build_next_ref(ref, done)

    def send_offsets(self, request: CommitOffsets) -> None:
        """Send offsets of a group. In the same transaction, a repeat changes nothing."""
        self._ask_until_reply(lambda: self._requester.ask(request))

    def commit(self, requests: Sequence[tuple[AnyRequest, Rows | None]]) -> CommitReply:
        """Send requests, the commit last, in one letter if they fit. Return the replies, also if they are refusals."""

        def send() -> CommitReply:
            *other_replies, end = self._requester.submit_all(requests)
            # a timeout and "not sent" hold for the letter as a whole
            if isinstance(error := end.exception(), (RequestTimedOut, *NO_EFFECT)):
                raise error
            return CommitReply(end, other_replies)

        return self._ask_until_reply(send)

    def _ask(self, request: AnyRequest, kind: type[R]) -> R:
        result = self._requester.ask(request)
        assert isinstance(result, kind)
        return result

    def _ask_until_reply(self, ask: Callable[[], R]) -> R:
        """Send again while no reply comes: an init or end that was decided already gets the same reply."""

        def noting() -> R:
            try:
                return ask()
            except LakeMQError as error:
                self._parts.has_unanswered |= isinstance(error, RequestTimedOut)
                raise
            except BaseException:
                self._parts.has_unanswered = True
                raise

        return ask_with_retries(noting, self._clock, self._clock.steady_ms() + self._answer_timeout_ms)


def get_result(future: Future[AnyResult], kind: type[R]) -> R:
    """Wait for a result of this class, and return it. Raises the error of the request."""
    result = future.result()
    assert isinstance(result, kind)
    return result


def build_next_ref(ref: TransactionRef, done: TransactionEnded) -> TransactionRef:
    """Return the transaction that follows one that has ended."""
    return TransactionRef(ref.transactional_id, done.producer_id, done.producer_epoch)
