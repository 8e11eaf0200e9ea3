"""Read decided steps from the step log, beginning after a watermark.

All tables hold the steps up to the watermark. So a reader of the namespace takes the tables as of the watermark, and
the steps after it from their objects.

Invariant: the steps after the newest watermark have no gap, and each is as it was written. So a step that is missing
although a later one is there is damage, unless a watermark now holds it: then the reader loads again from there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from lakemq.tables.specs.watermarks import WatermarkRow
from lakemq.tables.storage.coordination.step_objects import StepFollower, StepLost, StepsGone, step_name
from lakemq.tables.storage.delta.store import Store

from ...protocol.codec.step_object import StepHead, decode_head, decode_step_object
from ...protocol.errors import InconsistentClusterId, NewerFormat, TableDamaged
from ...protocol.values.journal import Step
from .load import read_watermark

T = TypeVar("T")


class StepReader:
    """Reads the steps after the one that it stands on, in order and without a gap. Not thread-safe."""

    def __init__(self, store: Store, step: int, steady_ms: Callable[[], int], namespace_id: str = "") -> None:
        """Stand on a step whose object is there.

        Args:
            steady_ms: returns a time that only goes forward, and on while the machine sleeps.
            namespace_id: of the namespace whose steps these must be. Empty: the one of the first step that is read.

        Raises:
            StepsGone: there is no object of this step.
            InconsistentClusterId: it is a step of another namespace.
            TableDamaged: its object is not as it was written.
        """
        self._store, self._namespace_id = store, namespace_id
        self._follower = StepFollower(store.files, step, steady_ms)
        if namespace_id:
            self._check_first_step(step)

    @property
    def step(self) -> int:
        """The last step that was read."""
        return self._follower.step

    @property
    def identity(self) -> str:
        """The identity of that step's object."""
        return self._follower.identity

    def is_behind(self, count: int) -> bool:
        """Return whether there are more than so many newer steps, for one request."""
        return self._store.files.identity(step_name(self.step + count + 1)) is not None

    def read(self, checks_end: bool = False) -> list[Step]:
        """Return all newer steps, in order; none if there is no newer one yet.

        Args:
            checks_end: notice at once that a step is lost, for a request that lists the steps. Else the first call
                notices it, and a later one within LOOK_MS.

        Raises:
            StepsGone: steps were removed that were not read yet, or the namespace was replaced.
            InconsistentClusterId: a namespace that was created again at this path has put a step.
            NewerFormat: a newer version of LakeMQ wrote a step.
            TableDamaged: a step is lost, or its object is not as it was written.
        """
        return self._read(decode_step_object, checks_end)

    def read_heads(self) -> list[StepHead]:
        """Return the heads of all newer steps, as `read` returns the steps."""
        return self._read(_decode_only_head)

    def _read(self, decode: Callable[[bytes], tuple[StepHead, T]], checks_end: bool = False) -> list[T]:
        first, values = self.step + 1, []
        for step, body in enumerate(self._read_bodies(checks_end), first):
            head, value = _decode_body(decode, step, body)
            self._namespace_id = self._namespace_id or head.namespace_id
            _check_head(head, step, self._namespace_id)
            values.append(value)
        return values

    def _read_bodies(self, checks_end: bool) -> list[bytes]:
        try:
            return self._follower.read(checks_end)
        except StepLost as lost:
            if read_watermark(self._store).step >= lost.step:
                raise StepsGone(f"the tables hold step {lost.step} by now") from None
            raise _make_step_error(lost.step, str(lost)) from None

    def _check_first_step(self, step: int) -> None:
        """Check that the step on which this reader begins is one of its namespace. Raises what `__init__` raises."""
        try:
            head = _decode_body(decode_head, step, self._store.files.get(step_name(step)))
        except FileNotFoundError:
            raise StepsGone(f"step {step} is gone") from None
        if head.namespace_id:  # step 0 was put before the namespace had its id
            _check_head(head, step, self._namespace_id)


def _decode_body(decode: Callable[[bytes], T], step: int, body: bytes) -> T:
    """Decode the object of a step. Raises TableDamaged, NewerFormat, which name the object."""
    try:
        return decode(body)
    except NewerFormat as error:
        raise NewerFormat(
            f"A newer version of LakeMQ wrote {step_name(step)}, or its first bytes are damaged.",
            found=error.found,
            expected=error.expected,
        ) from error
    except ValueError as error:
        raise _make_step_error(step, f"{step_name(step)} cannot be read: {error}") from error


def _make_step_error(step: int, found: str) -> TableDamaged:
    return TableDamaged(
        f"{found}.",
        expected=f"{step_name(step)} as LakeMQ wrote it: put the object back, or restore the namespace from a backup",
    )


def _check_head(head: StepHead, step: int, namespace_id: str) -> None:
    if head.step != step:
        raise _make_step_error(step, f"{step_name(step)} holds step {head.step}")
    if head.namespace_id != namespace_id:
        raise InconsistentClusterId(found=head.namespace_id, expected=namespace_id)


def _decode_only_head(body: bytes) -> tuple[StepHead, StepHead]:
    head = decode_head(body)
    return head, head


def follow_from_watermark(
    store: Store, steady_ms: Callable[[], int], namespace_id: str = ""
) -> tuple[WatermarkRow, StepReader]:
    """Return the newest watermark, and a reader that stands on its step. Arguments as of StepReader.

    Raises TableDamaged: the object of the watermark's step is lost. The leader never removes it.
    """
    watermark = read_watermark(store)
    while True:
        try:
            return watermark, StepReader(store, watermark.step, steady_ms, namespace_id)
        except StepsGone:
            newest = read_watermark(store)
            if newest.step == watermark.step:
                raise _make_step_error(watermark.step, f"{step_name(watermark.step)} is missing") from None
            watermark = newest
