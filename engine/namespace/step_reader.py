"""Read decided steps from the step log, beginning after a watermark; and open the tables as of a watermark.

All tables hold the steps up to the watermark. So a reader of the namespace takes the tables as of the watermark, and
the steps after it from their objects.

Invariant: the steps after the newest watermark have no gap, and each is as it was written. So a step that is missing
although a later one is there is damage, unless a watermark now holds it: then the reader loads again from there.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lakemq.tables.specs.journal import WATERMARKS, WatermarkRow
from lakemq.tables.specs.messages import MESSAGES
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.coordination.step_objects import StepFollower, StepLost, StepsGone, step_name
from lakemq.tables.storage.delta.catalog import Moment
from lakemq.tables.storage.delta.store import Store, TableHandle

from ..protocol.codec.steps import StepHead, decode_head, decode_step_object
from ..protocol.errors import InconsistentClusterId, InvalidRequest, NewerFormat, StepTooOld, TableDamaged
from ..protocol.values.journal import Step, is_renewal
from .clock import SystemClock
from .load import BEGINNING, check_versions, read_watermark

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
        first, values = self._follower.step + 1, []
        try:
            bodies = self._follower.read(checks_end)
        except StepLost as lost:
            if read_watermark(self._store).step >= lost.step:
                raise StepsGone(f"the tables hold step {lost.step} by now") from None
            raise _make_step_error(lost.step, str(lost)) from None
        for step, body in enumerate(bodies, first):
            head, value = _decode_body(decode, step, body)
            self._namespace_id = self._namespace_id or head.namespace_id
            _check_head(head, step, self._namespace_id)
            values.append(value)
        return values

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


# Read the steps that the tables do not hold yet.


def find_projection_target(store: Store) -> int:
    """Return the step that the tables must reach to hold all that is decided so far; 0 if they hold it."""
    steps = read_waiting_steps(store)
    return steps[-1].step if steps else 0


def read_waiting_steps(store: Store) -> list[Step]:
    """Return all steps that the tables do not hold yet, up to the last one that does more than renew the lease.

    A leader projects renewals late, so nothing that waits for the tables may wait for these.
    """
    return drop_last_renewals(read_steps_after_watermark(store))


def read_steps_after_watermark(store: Store) -> list[Step]:
    """Return all steps after the newest watermark, also those that only renew the lease."""
    while True:
        _, reader = follow_from_watermark(store, SystemClock().steady_ms)
        with suppress(StepsGone):
            return reader.read()


def drop_last_renewals(steps: list[Step]) -> list[Step]:
    """Return the steps up to the last one that does more than renew the lease."""
    count = len(steps)
    while count and is_renewal(steps[count - 1]):
        count -= 1
    return steps[:count]


# Open all tables of a namespace as of one watermark.


_ATTEMPTS = 20
_SNAPSHOT_TABLES = sorted((s for s in TABLES if not s.is_open_to_writers), key=lambda spec: spec is MESSAGES)


class Snapshot(NamedTuple):
    """The tables that LakeMQ writes, at a watermark. No row up to its step is missing; later rows may be there.

    `inbox` is not among them: its other writers must not be able to make the rest unreadable.
    """

    watermark: WatermarkRow
    handles: Mapping[str, TableHandle]


def take_snapshot(store: Store, as_of: int | datetime | None = None) -> Snapshot:
    """Open the newest snapshot, the first one that holds a step, or the newest one at or before a time.

    Steps are projected in passes, and only the end of a pass can be read. So a snapshot that holds a step may also hold
    the steps that were projected with it.

    Segments are opened before messages, so that every row that a segment points at is there.

    Raises:
        StepTooOld: merges have removed older rows of keys since.
        InvalidRequest: the tables do not hold the step yet.
        TableDamaged: a table lacks rows that LakeMQ wrote.
    """
    # read before the tables are opened: a step that is not in `later` then, and was decided, is in the tables
    later = read_steps_after_watermark(store) if isinstance(as_of, int) else []
    for _ in range(_ATTEMPTS):
        watermark = read_watermark(store)
        handles = {spec.name: store.open(spec) for spec in _SNAPSHOT_TABLES}
        check_versions(store, watermark, handles)
        floor = max(handle.floor() for handle in handles.values())
        if floor > watermark.step:
            continue
        if as_of is None:
            return Snapshot(watermark, handles)
        # later watermarks do not count: tables that were opened before them lack their rows
        watermarks = handles[WATERMARKS.name].read(step=(None, watermark.step)).sort_by("step")
        if isinstance(as_of, datetime):
            chosen = _find_watermark_at_time(watermarks, as_of)
        else:
            chosen = _find_watermark_with_step(watermarks, watermark, as_of, later)
        floor = max(floor, watermark.floor)
        if chosen.step < floor:  # merges have removed older rows of keys
            raise StepTooOld(
                "What the tables held then was merged.", found=str(as_of), expected=f"step {floor} or later"
            )
        return Snapshot(chosen, handles)
    raise StepTooOld("The tables are merged faster than they can be opened.")


def find_moment(store: Store, as_of: int | datetime | None) -> Moment | None:
    """Return the table versions for Spark's catalog at a step or time. None: the newest.

    Raises StepTooOld, InvalidRequest, TableDamaged.
    """
    if as_of is None:
        return None
    watermark, handles = take_snapshot(store, as_of)
    return Moment(watermark.step, {name: handle.version for name, handle in handles.items()})


def _find_watermark_at_time(watermarks: pa.Table, time: datetime) -> WatermarkRow:
    """Return the newest watermark at or before a time. watermarks: by step."""
    rows = watermarks.filter(pc.field("decided_at_ms") <= int(time.timestamp() * 1000))
    newest: list[WatermarkRow] = WATERMARKS.rows(rows.slice(max(0, rows.num_rows - 1)))
    return newest[0] if newest else BEGINNING


def _find_watermark_with_step(
    watermarks: pa.Table, newest: WatermarkRow, step: int, later: Sequence[Step]
) -> WatermarkRow:
    """Return the first watermark at or after a step. later: the steps that the tables may not hold."""
    if step == BEGINNING.step:
        return BEGINNING
    holders: list[WatermarkRow] = WATERMARKS.rows(watermarks.filter(pc.field("step") >= step).slice(0, 1))
    if holders:
        return holders[0]
    # a leader projects renewals of its lease late, and they change no row
    waiting = drop_last_renewals([decided for decided in later if newest.step < decided.step <= step])
    if waiting or step > max([newest.step, *(decided.step for decided in later)]):
        raise InvalidRequest(
            f"The tables do not hold step {step} yet. Try again, or start `lakemq serve` if none runs.",
            found=f"step {step}",
            expected=f"a step up to {newest.step}",
        )
    return newest
