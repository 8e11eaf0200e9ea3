"""A transactional id in this process: its producer, its open transaction, and how each transaction ends.

The answer to the end decides. A commit that is accepted includes all parts, whatever became of their own answers. After
a commit that is refused, the transaction is still open: it can be ended again or aborted.

Once an end is requested, no new part is accepted. The end waits for parts in flight; they count under the lock that
closed the transaction. So nothing becomes part of a transaction after its end, or of the next one.
Rows of docs/architecture.md: end of a transaction 2.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import NamedTuple, TypeAlias, TypeVar

from ...namespace.clock import Clock
from ...protocol.codec.few_rows import Rows
from ...protocol.errors import (
    InvalidRequest,
    InvalidTxnState,
    LakeMQError,
    RequestTimedOut,
    StaleTopicMetadata,
    TransactionAbortable,
)
from ...protocol.values.kinds import AnyRequest, AnyResult
from ...protocol.values.log import Produce, Published
from ...protocol.values.offsets import CommitOffsets
from ...protocol.values.producers import InitProducer, ProducerDone, TransactionRef
from ...protocol.values.transactions import EndTransaction, TransactionEnded
from ..arguments import parse_group_name, parse_partition_offsets, parse_text
from ..offsets import ConsumedMessages, ConsumedOffsets, build_offset_commits
from ..requests.requester import NO_EFFECT, Requester, ask_with_retries
from ..tracing import open_span
from .state import FENCED, PhaseEvent, TransactionState

Part: TypeAlias = tuple[Produce, Rows | None]
"""A publish that is not sent yet, with the rows that go in its letter."""

R = TypeVar("R")


class CommitAnswer(NamedTuple):
    """The answer to a commit, and those to the requests that came with it, in their order."""

    end: Future[AnyResult]
    other_answers: list[Future[AnyResult]]

    @property
    def error(self) -> BaseException | None:
        """The error with which the commit was refused; None: the transaction is committed."""
        return self.end.exception()

    def next_ref(self, ref: TransactionRef) -> TransactionRef:
        """Return the transaction that follows the committed one."""
        return build_next_ref(ref, get_result(self.end, TransactionEnded))

    def list_published(self, part_count: int) -> list[Published | None]:
        """Return the results of the first requests; None for a request that was refused, if the commit was, too.

        For a repeated commit, only the end gets an answer again: the places of its parts are unknown.
        """
        unknown = None if self.error is not None else Published([])
        return [
            unknown if answer.exception() else get_result(answer, Published)
            for answer in self.other_answers[:part_count]
        ]

    def find_cause(self, part_count: int) -> BaseException | None:
        """Return the error that makes a refused commit final; None if its refused parts can be built again."""
        errors = [answer.exception() for answer in self.other_answers]
        for index, error in enumerate(errors):
            if error and not (isinstance(error, StaleTopicMetadata) and index < part_count):
                return error
        return None if any(errors) else self.error


def get_result(future: Future[AnyResult], kind: type[R]) -> R:
    """Wait for a result of this class, and return it. Raises the error of the request."""
    result = future.result()
    assert isinstance(result, kind)
    return result


def build_next_ref(ref: TransactionRef, done: TransactionEnded) -> TransactionRef:
    """Return the transaction that follows one that has ended."""
    return TransactionRef(ref.transactional_id, done.producer_id, done.producer_epoch)


Offsets = Mapping[tuple[str, int], int]
"""(topic, partition) -> the next offset to consume."""


class TransactionManager(TransactionState):
    """A transactional id with at most one open transaction. Thread-safe; calls in the wrong order are refused.

    It is the state machine, sends what begins and ends a transaction, and takes in the answers. A request is sent again
    while no answer comes.
    """

    def __init__(
        self,
        requester: Requester,
        clock: Clock,
        transactional_id: str,
        timeout_ms: int,
        answer_timeout_ms: int,
    ) -> None:
        """Create the manager. `initialize` takes the id.

        Args:
            timeout_ms: transaction.timeout.ms.
            answer_timeout_ms: how long an end is tried before giving up.
        """
        super().__init__()
        self.transactional_id, self.timeout_ms = transactional_id, timeout_ms
        self._requester, self._clock, self._answer_timeout_ms = requester, clock, answer_timeout_ms

    def initialize(self) -> TransactionRef:
        """Take the id: fence its holder, and abort its open transaction. Return the next one.

        Raises what the request raises.
        """
        request = InitProducer(self.transactional_id, self.timeout_ms)
        return self.take_id(self.transactional_id, self._ask_until_answer(lambda: self._ask(request, ProducerDone)))

    # -- its parts --------------------------------------------------------------------------------------

    @contextmanager
    def add_part(
        self, expected_ref: TransactionRef | None = None, was_added: bool = False, group: str | None = None
    ) -> Iterator[TransactionRef]:
        """Send a part in this block. It counts when the block ends; an exception makes the transaction abort-only.

        Args:
            expected_ref: the transaction that the part belongs to.
            was_added: the part was accepted before the end was requested, and the end waits for it.
            group: whose offsets are sent. All offsets of a group count as one part.

        Raises:
            What `get_accepting` raises.
        """
        with self.lock.own:
            ref = self.get_ref_while_ending() if was_added else self.get_accepting(expected_ref)
            self.parts.start_part()
        with self.parts.finish_part(group):
            yield ref

    def note_failure(self, error: BaseException) -> None:
        """Make the transaction abort-only: a part was refused, or its outcome is unknown."""
        with self.lock.own:
            self.parts.note_failure(error)

    def add_offsets(
        self,
        group: str | None,
        offsets: Offsets,
        metadata: str | None = None,
        expected_ref: TransactionRef | None = None,
    ) -> None:
        """Send offsets of a group, which are pending until the transaction ends. Add messages of a queue group.

        New offsets of a partition replace those that were sent before. Messages of a queue group add up, and travel
        with the commit: their member keeps them until then, so that after an abort it may send them again. An error
        makes the transaction abort-only, so that it cannot commit without the offsets.

        Raises:
            InvalidRequest, InvalidGroupId, UnknownTopicOrPartition, UnknownTopicId, OffsetOutOfRange,
                OffsetMetadataTooLarge: bad arguments.
            FencedMemberEpoch, UnknownMemberId, IllegalGeneration: the member has lost the partitions.
            InvalidRecordState: the queue's batch has no unsettled messages left.
            What `get_accepting` raises.
        """
        ref = self.get_accepting(expected_ref)
        try:
            request = self._add_positions(ref, group, offsets, metadata)
        except BaseException as error:
            self.note_failure(error)
            raise
        if request is None:
            return
        try:
            with self.add_part(ref, group=group):
                self._ask_until_answer(lambda: self._requester.ask(request))  # a repeat changes nothing
        except FENCED:
            self.parts.check_not_fenced()
            raise

    def _add_positions(
        self, ref: TransactionRef, group: str | None, offsets: Offsets, metadata: str | None
    ) -> CommitOffsets | None:
        """Return the request that makes offsets part of the transaction; None if there are none to send now."""
        if group is None:
            raise InvalidRequest("Offsets without a group.", expected="group=...")
        named, metadata = parse_group_name(group), None if metadata is None else parse_text("metadata", metadata)
        consumed = offsets if isinstance(offsets, ConsumedOffsets) else parse_partition_offsets("offsets", offsets)
        member_id = getattr(consumed, "member_id", None)
        if isinstance(consumed, ConsumedMessages):
            consumed.check_has_unacknowledged()
            self.add_messages(ref, named, member_id, consumed.messages)
            return None
        self.note_member(named, member_id)
        commits = build_offset_commits(consumed, metadata)
        generation = getattr(consumed, "generation", None)
        return CommitOffsets(named, commits, ref, member_id, generation) if commits else None

    # -- ending -----------------------------------------------------------------------------------------

    @property
    def may_commit_again(self) -> bool:
        """Whether the failed commit may be sent once more. Only inside `ending`."""
        return self.fallback is PhaseEvent.LOSE_ANSWER

    def commit(self, batch_id: int | None = None, expected_ref: TransactionRef | None = None) -> None:
        """Commit everything that was published. Raises what `ending` and `send_commit` raise."""
        named = {"lakemq.transactional_id": self.transactional_id}
        with (
            open_span("commit", "settle", self.transactional_id, named),
            self.ending(commits=True, expected_ref=expected_ref),
        ):
            self.send_commit((), batch_id)

    def abort(self, expected_ref: TransactionRef | None = None) -> None:
        """Abort: no part becomes visible. Raises what `ending` and `send_abort` raise."""
        with self.ending(commits=False, expected_ref=expected_ref):
            self.send_abort()

    def send_commit(self, parts: Sequence[Part] = (), batch_id: int | None = None) -> list[Published | None]:
        """Send the last parts, acknowledgements and the commit, in one letter if they fit. Only inside `ending`.

        Returns:
            The results of the parts, without units where these are unknown by now. If a result is None, its topic has
            changed and nothing is committed: build these parts again and commit them by another call.

        Raises:
            TransactionAbortable: a part has failed.
            ProducerFenced: another process has taken the id.
            RequestTimedOut: the outcome is unknown. The same call may be made again.
        """
        with self.lock.own:
            self.parts.wait_until_finished()
            self.parts.check_no_failure()
        assert self.ref is not None
        ref = self.ref
        acknowledgements = self.build_acknowledgements(ref)
        if not (parts or acknowledgements or self.parts.count):
            self.finish(ref)
            return []
        end = EndTransaction(ref, True, self.parts.count + len(parts) + len(acknowledgements), batch_id)
        letter: list[tuple[AnyRequest, Rows | None]] = [
            *parts,
            *((request, None) for request in acknowledgements),
            (end, None),
        ]
        self.fallback = PhaseEvent.LOSE_ANSWER
        commit_answer = self._ask_until_answer(lambda: self._send_letter(letter))
        self.fallback = PhaseEvent.REFUSE
        if commit_answer.error is not None:
            self._take_refusal(commit_answer, commit_answer.error, len(parts))
        else:
            self.finish(commit_answer.next_ref(ref), batch_id)
        return commit_answer.list_published(len(parts))

    def _take_refusal(self, commit_answer: CommitAnswer, error: BaseException, part_count: int) -> None:
        """Take in a refused commit. Raises its error, unless all that failed are parts that can be built again."""
        if isinstance(error, FENCED):
            self.lose_id(error)
            raise error
        cause = commit_answer.find_cause(part_count)
        with self.lock.own:
            if cause is not None:
                self.parts.note_failure(cause)
                self.parts.check_no_failure()
            # The sequencer has the accepted acknowledgements now. The groups keep their members.
            self.parts.count += sum(answer.exception() is None for answer in commit_answer.other_answers)
            self._messages.clear()

    def send_abort(self) -> None:
        """Abort the transaction. Only inside `ending`.

        Raises:
            ProducerFenced: another process has taken the id.
            RequestTimedOut: the outcome is unknown.
            InvalidTxnState: an unanswered commit has committed it.
        """
        with self.lock.own:
            self.parts.wait_until_finished()
        assert self.ref is not None
        ref = self.ref
        try:
            done = self._ask_until_answer(lambda: self._ask(EndTransaction(ref, False), TransactionEnded))
            following = build_next_ref(ref, done)
        except FENCED as error:
            self.lose_id(error)
            raise
        except InvalidTxnState:
            raise
        except BaseException:
            with self.lock.own:
                self.parts.note_failure(TransactionAbortable("The abort was not answered. Abort again."))
            raise
        if self.parts.has_unanswered and following == ref:
            following = self.initialize()  # nothing had come: should it come yet, it must not find the next transaction
        self.finish(following)

    # -- requests ---------------------------------------------------------------------------------------

    def _send_letter(self, requests: Sequence[tuple[AnyRequest, Rows | None]]) -> CommitAnswer:
        """Send requests, the commit last, in one letter if they fit. Return the answers, also if they are refusals."""
        *other_answers, end = self._requester.submit_all(requests)
        # a timeout and "not sent" hold for the letter as a whole
        if isinstance(error := end.exception(), (RequestTimedOut, *NO_EFFECT)):
            raise error
        return CommitAnswer(end, other_answers)

    def _ask(self, request: AnyRequest, kind: type[R]) -> R:
        result = self._requester.ask(request)
        assert isinstance(result, kind)
        return result

    def _ask_until_answer(self, ask: Callable[[], R]) -> R:
        """Send again while no answer comes: an init or end that was decided already gets the same answer."""

        def noting() -> R:
            try:
                return ask()
            except LakeMQError as error:
                self.parts.has_unanswered |= isinstance(error, RequestTimedOut)
                raise
            except BaseException:
                self.parts.has_unanswered = True
                raise

        return ask_with_retries(noting, self._clock, self._clock.steady_ms() + self._answer_timeout_ms)
