"""The step log as the leader sees it: it stands on the last step that it knows, and appends the next one.

A step is one object, whose name is its number. This is the fence between two sequencers that both believe to lead:

1. A leader puts its next step only if that name is free. If two leaders try, one succeeds. The other finds the name
   taken, gets NotLeader and throws its state away.
2. A leader that was stopped for long may find its next name free again, because old steps are removed. So after each
   put it checks the step before. Steps are removed in ascending order (see `step_objects`): if the step before is
   still the same object, the name of the next one was never used before.

A leader answers the letters of a step only after this check. If it is stopped between the put and the check, the next
leader finds the step and continues from it. So the step counts, although the leader that put it may get NotLeader. If
the step before was removed before the put, the object counts for no reader, because every reader starts at a later
step. If the folder was replaced by another one before the put, the leader deletes the step again.

The fence needs no clock and no lock; the lease only decides who may try.
Rows of docs/architecture.md: publish 10; end of a transaction 5.
"""

from collections.abc import Callable
from dataclasses import dataclass

from lakemq.tables.storage.coordination.step_objects import list_steps, step_name
from lakemq.tables.storage.object_stores.files import Files

from ..namespace import crash
from ..protocol.codec.steps import StepHead, decode_head, encode_step_object
from ..protocol.errors import NotLeader
from ..protocol.values.journal import FORMAT_VERSION, Step

LOOK_BEFORE_MS = 5_000
"""Time without a put after which the leader also checks the step before it puts: it may have been stopped for long."""


@dataclass(frozen=True)
class EncodedStep:
    """The object of a step, before it is put. nonce: unique to it."""

    step: int
    nonce: str
    body: bytes


class StepLog:
    """Appends steps for one leader. One thread appends; any may call `check_continuity`.

    After any error, leadership is in doubt, and the term must end.
    """

    def __init__(
        self,
        files: Files,
        namespace_id: str,
        step: int,
        identity: str,
        new_nonce: Callable[[], str],
        steady_ms: Callable[[], int],
        crash_point: crash.CrashPoint = crash.nowhere,
    ) -> None:
        """Stand on a step that was read, and make it durable: its leader may have died before it did this.

        Args:
            step, identity: the number of the step, and the identity of its object (`Files.identity`) as it was read.
            steady_ms: returns a time that only goes forward.
        """
        self._files, self._namespace_id, self._new_nonce = files, namespace_id, new_nonce
        self._steady_ms, self._crash_point = steady_ms, crash_point
        self._stands_on = step, identity
        self._put_at_ms: int | None = None
        files.sync([step_name(step)])

    @property
    def step(self) -> int:
        """The last step that landed."""
        return self._stands_on[0]

    def encode(self, step: Step, leader: str, lease_ms: int) -> EncodedStep:
        """Encode a step for `append`. leader, lease_ms: after this step."""
        nonce = self._new_nonce()
        head = StepHead(
            FORMAT_VERSION,
            self._namespace_id,
            nonce,
            step.step,
            step.decided_at_ms,
            leader,
            step.leader_epoch,
            lease_ms,
        )
        return EncodedStep(step.step, nonce, encode_step_object(head, step))

    def append(self, encoded: EncodedStep) -> None:
        """Put the next step, whose number is `step` + 1.

        Raises:
            NotLeader: another sequencer has put this step, or has gone on for so long that steps were removed. In the
                latter case this step may count.
            NewerFormat: a sequencer of a newer version has put this step.
            OSError: the store failed. The step may have landed or not.
        """
        now_ms, name = self._steady_ms(), step_name(encoded.step)
        if self._put_at_ms is None or now_ms - self._put_at_ms > LOOK_BEFORE_MS:
            self.check_continuity()
        try:
            identity = self._files.put(name, encoded.body)
        except OSError as error:  # also FileExistsError: some stores repeat a put that succeeded
            identity = self._find_own(name, encoded.nonce, error)
        self._crash_point("sequencer.step_put")
        try:
            self.check_continuity()
        except NotLeader:
            self._remove_stray(encoded.step, identity)
            raise
        self._stands_on, self._put_at_ms = (encoded.step, identity), now_ms

    def _find_own(self, name: str, nonce: str, failed: OSError) -> str:
        """Return the identity of the object if a put that failed has landed nevertheless, and make it durable.

        Raises:
            NotLeader: another sequencer's step is there.
            OSError: nothing is there, or it cannot be read. It may appear later.
        """
        try:
            stored = self._files.get_identified(name)
            head = decode_head(stored.body)
        except (OSError, ValueError):
            raise failed from None
        if head.nonce != nonce:
            raise NotLeader("Another sequencer has decided this step.", found=head.leader) from failed
        self._files.sync([name])
        return stored.identity

    def _remove_stray(self, step: int, identity: str) -> None:
        """Delete a step that was put into another namespace, or into an older copy of this one, after the newest there.

        Its number would be taken when the steps there reach it. In an older copy it would be read then, although it
        was decided on other steps. Steps are removed in ascending order, so a gap below it is the sign of such a copy.
        """
        *earlier, newest = list_steps(self._files) or [-1]
        if newest != step or not earlier or self._files.identity(step_name(step)) != identity:
            return
        if earlier[-1] < step - 1 or self._is_foreign(earlier[-1]):
            self._files.delete([step_name(step)])

    def _is_foreign(self, step: int) -> bool:
        try:
            return decode_head(self._files.get(step_name(step))).namespace_id != self._namespace_id
        except (OSError, ValueError):
            return False

    def check_continuity(self) -> None:
        """Check that the last step that landed is still the same object. Any thread may call this. Raises NotLeader.

        It has changed if other leaders went on for so long that it was removed, or if the namespace was replaced.
        """
        step, identity = self._stands_on
        if self._files.identity(step_name(step)) != identity:
            raise NotLeader(f"The log does not continue from step {step}: it was removed or replaced.")
