"""Transactions as docs/semantics.md D tells them: row by row, dicts and lists, none of the engine's code.

It decides what the protocol decides, and is plain enough to be read against the semantics. A log is a list of entries,
each of which knows its transaction; what a reader sees is computed by asking every entry.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from lakemq.engine.protocol.values.base import Done
from lakemq.engine.protocol.values.groups import OffsetCommit, OffsetsFetched
from lakemq.engine.protocol.values.log import Published, Unit
from lakemq.engine.protocol.values.producers import ProducerDone, TransactionRef
from lakemq.engine.protocol.values.transactions import TransactionEnded

Place = tuple[int, int]
"""topic_id and partition."""
Result = str | Done | OffsetsFetched | ProducerDone | Published | TransactionEnded
"""A refusal is its error's name."""

ABORTING = {"INVALID_RECORD", "OUT_OF_ORDER_SEQUENCE_NUMBER", "OFFSET_OUT_OF_RANGE"}
"""A part that was refused so leaves its transaction to be aborted; what may be asked again does not."""


class Refused(Exception):
    """str() is the name of the error."""


@dataclass(eq=False)
class Transaction:
    ref: TransactionRef
    started_at_ms: int
    outcome: str = "open"
    ended_by: str = ""
    parts: int = 0
    failed: bool = False
    offsets: dict[str, dict[Place, int]] = field(default_factory=dict)
    sequences: dict[Place, list[tuple[int, int, int]]] = field(default_factory=dict)
    """(first sequence, count, first offset) of each publish, the last five."""


@dataclass(eq=False)
class Entry:
    """What an offset holds; a marker has no value."""

    value: str | None
    transaction: Transaction | None = None


@dataclass
class TransactionalId:
    producer_id: int
    epoch: int
    timeout_ms: int = 0
    seen_at_ms: int = 0
    open: Transaction | None = None
    last: Transaction | None = None
    batch_id: int = -1


@dataclass(frozen=True)
class Publish:
    """values: by place, in order; sequences: of the first value of each place; flaw: "", "bad row" or "stale"."""

    ref: TransactionRef | None
    file_id: int
    values: dict[Place, list[str]]
    sequences: dict[Place, int] | None
    flaw: str = ""
    outside: bool = False


class Model:
    def __init__(self, topics: dict[int, tuple[str, int]], last_epoch: int) -> None:
        """topics: id -> name and partitions; last_epoch: the last one that is handed out."""
        self.names = {topic_id: name for topic_id, (name, _) in topics.items()}
        places = [(topic_id, p) for topic_id, (_, count) in topics.items() for p in range(count)]
        self.logs: dict[Place, list[Entry]] = {place: [] for place in places}
        self.log_starts = dict.fromkeys(places, 0)
        self.ids: dict[str, TransactionalId] = {}
        self.used_up: set[int] = set()
        self.next_producer_id, self.last_epoch = 0, last_epoch
        self.offsets: dict[str, dict[Place, int]] = {}
        self.now_ms = 0

    # -- what is to be seen -----------------------------------------------------------------------------

    def stable(self, place: Place) -> int:
        log = self.logs[place]
        opened = [i for i, e in enumerate(log) if e.value and e.transaction and e.transaction.outcome == "open"]
        return max([*opened[:1], self.log_starts[place]]) if opened else len(log)

    def read_committed(self, place: Place) -> dict[int, str]:
        return {
            offset: value
            for offset, value in self.read_uncommitted(place).items()
            if offset < self.stable(place) and _is_committed(self.logs[place][offset])
        }

    def read_uncommitted(self, place: Place) -> dict[int, str]:
        start = self.log_starts[place]
        return {i: e.value for i, e in enumerate(self.logs[place]) if i >= start and e.value is not None}

    # -- requests ---------------------------------------------------------------------------------------

    def init(self, name: str, timeout_ms: int) -> Result:
        one = self.ids.get(name)
        if one is None:
            one = self.ids[name] = TransactionalId(self._new_producer_id(), 0)
        else:
            if one.open:
                self._end(one, "aborted", "fenced")
            self._advance(one)
        one.timeout_ms, one.seen_at_ms, one.last = timeout_ms, self.now_ms, None
        return ProducerDone(one.producer_id, one.epoch, one.batch_id)

    def publish(self, request: Publish) -> Result:
        try:
            if request.ref is not None and not request.outside:
                self._check_writer(request.ref)
            elif request.ref is not None:
                self._check_outsider(request.ref)
            if request.flaw == "bad row":
                raise Refused("INVALID_RECORD")
            known = self._published_before(request)
            if known and set(known) == set(request.values):
                return Published(self._units(request, known), duplicate=True)
            if request.flaw == "stale":
                raise Refused("STALE_TOPIC_METADATA")
        except Refused as refused:
            return self._refuse(request.ref, str(refused))
        transaction = self._part(request.ref) if request.ref and not request.outside else None
        for place, values in request.values.items():
            if place not in known:
                known[place] = len(self.logs[place])
                self.logs[place] += [Entry(value, transaction) for value in values]
                if transaction and request.sequences:
                    published = transaction.sequences.setdefault(place, [])
                    published.append((request.sequences[place], len(values), known[place]))
                    del published[:-5]
        return Published(self._units(request, known))

    def commit_offset(self, ref: TransactionRef | None, group: str, place: Place, offset: int) -> Result:
        try:
            if ref is not None:
                self._check_writer(ref)
            if not 0 <= offset <= len(self.logs[place]):
                raise Refused("OFFSET_OUT_OF_RANGE")
        except Refused as refused:
            return self._refuse(ref, str(refused))
        offsets = self.offsets if ref is None else self._part(ref).offsets
        offsets.setdefault(group, {})[place] = offset
        return Done()

    def fetch_offsets(self, group: str) -> Result:
        if any(one.open and group in one.open.offsets for one in self.ids.values()):
            return "UNSTABLE_OFFSET_COMMIT"
        committed = sorted(self.offsets.get(group, {}).items())
        return OffsetsFetched([OffsetCommit(self.names[t], p, offset, None, t) for (t, p), offset in committed])

    def end(self, ref: TransactionRef, commit: bool, parts: int, batch_id: int | None) -> Result:
        one = self.ids.get(ref.transactional_id)
        if one is None:
            return "INVALID_PRODUCER_ID_MAPPING"
        repeated = commit and batch_id is not None and batch_id <= one.batch_id
        if not _is_current(one, ref):
            return self._end_again(one, ref, commit, repeated)
        if one.open is None:
            return "INVALID_TXN_STATE" if parts else TransactionEnded(one.producer_id, one.epoch)
        if commit and one.open.failed:
            return "TRANSACTION_ABORTABLE"
        if commit and one.open.parts != parts:
            return "INVALID_TXN_STATE"
        if commit and not repeated and batch_id is not None:
            one.batch_id = batch_id
        self._end(one, "committed" if commit and not repeated else "aborted", "producer")
        return TransactionEnded(one.producer_id, one.epoch, duplicate=repeated)

    def _end_again(self, one: TransactionalId, ref: TransactionRef, commit: bool, repeated: bool) -> Result:
        if one.open or one.last is None or one.last.ref != ref:
            return "INVALID_PRODUCER_ID_MAPPING" if ref.producer_id != one.producer_id else "PRODUCER_FENCED"
        if one.last.ended_by == "operator":
            return "PRODUCER_FENCED"
        if one.last.ended_by == "timeout" and commit:
            return "TRANSACTION_ABORTABLE"
        committed = one.last.outcome == "committed"
        if one.last.ended_by == "producer" and commit != committed and not repeated:
            return "INVALID_TXN_STATE"
        return TransactionEnded(one.producer_id, one.epoch, duplicate=True)

    def operator_aborts(self, name: str) -> Result:
        one = self.ids.get(name)
        if one is None:
            return "TRANSACTIONAL_ID_NOT_FOUND"
        if one.open is None:
            return "INVALID_TXN_STATE"
        self._end(one, "aborted", "operator")
        return Done()

    def delete_records(self, place: Place, before: int) -> Result:
        if before > len(self.logs[place]):
            return "OFFSET_OUT_OF_RANGE"
        self.log_starts[place] = max(self.log_starts[place], before)
        return Done()

    def pass_time(self, expiration_ms: int) -> None:
        """Transactions that were open for too long are aborted, ids that were silent for too long forgotten."""
        for name in sorted(self.ids):
            one = self.ids[name]
            if one.open and self.now_ms - one.open.started_at_ms > one.timeout_ms:
                self._end(one, "aborted", "timeout")
            if not one.open and self.now_ms - one.seen_at_ms > expiration_ms:
                del self.ids[name]

    # -- who may write ----------------------------------------------------------------------------------

    def _check_writer(self, ref: TransactionRef) -> None:
        one = self.ids.get(ref.transactional_id)
        if one is None:
            raise Refused("INVALID_PRODUCER_ID_MAPPING")
        if _is_current(one, ref):
            if one.open and one.open.failed:
                raise Refused("TRANSACTION_ABORTABLE")
            return
        ended_last = one.last is not None and one.last.ref == ref
        if ended_last and one.last and one.last.ended_by == "timeout":
            raise Refused("TRANSACTION_ABORTABLE")
        if ref.producer_id != one.producer_id and not ended_last:
            raise Refused("INVALID_PRODUCER_ID_MAPPING")
        raise Refused("INVALID_PRODUCER_EPOCH")

    def _check_outsider(self, ref: TransactionRef) -> None:
        """Who publishes outside of a transaction, under the name of a producer that has transactions, is refused."""
        if ref.producer_id in self.used_up:
            raise Refused("INVALID_PRODUCER_EPOCH")
        current = {one.producer_id for one in self.ids.values()}
        raise Refused("INVALID_TXN_STATE" if ref.producer_id in current else "UNKNOWN_PRODUCER_ID")

    def _published_before(self, request: Publish) -> dict[Place, int]:
        """Place -> first offset, where the same range of sequences was published before."""
        if request.sequences is None or request.ref is None:
            return {}
        open_one = self.ids[request.ref.transactional_id].open
        known = {}
        for place, values in request.values.items():
            published = open_one.sequences.get(place, []) if open_one else []
            same = [offset for first, n, offset in published if (first, n) == (request.sequences[place], len(values))]
            expected = sum(published[-1][:2]) if published else 0
            if same:
                known[place] = same[0]
            elif request.sequences[place] != expected:
                raise Refused("OUT_OF_ORDER_SEQUENCE_NUMBER")
        return known

    def _refuse(self, ref: TransactionRef | None, error: str) -> str:
        one = self.ids.get(ref.transactional_id) if ref else None
        if one and ref and _is_current(one, ref) and error in ABORTING:
            self._open(one, ref).failed = True
        return error

    def _part(self, ref: TransactionRef) -> Transaction:
        transaction = self._open(self.ids[ref.transactional_id], ref)
        transaction.parts += 1
        return transaction

    def _open(self, one: TransactionalId, ref: TransactionRef) -> Transaction:
        if one.open is None:
            one.open = Transaction(ref, self.now_ms)
        return one.open

    # -- how one ends -----------------------------------------------------------------------------------

    def _end(self, one: TransactionalId, outcome: str, by: str) -> None:
        transaction = one.open
        assert transaction
        transaction.outcome, transaction.ended_by = outcome, by
        for log in self.logs.values():
            if any(entry.transaction is transaction for entry in log):
                log.append(Entry(None, transaction))
        if outcome == "committed":
            for group, offsets in transaction.offsets.items():
                self.offsets.setdefault(group, {}).update(offsets)
        self._advance(one)
        one.open, one.last, one.seen_at_ms = None, transaction, self.now_ms

    def _advance(self, one: TransactionalId) -> None:
        if one.epoch < self.last_epoch:
            one.epoch += 1
        else:
            self.used_up.add(one.producer_id)
            one.producer_id, one.epoch = self._new_producer_id(), 0

    def _new_producer_id(self) -> int:
        self.next_producer_id += 1
        return self.next_producer_id - 1

    def _units(self, request: Publish, offsets: dict[Place, int]) -> list[Unit]:
        return [Unit(self.names[t], p, offsets[t, p], len(request.values[t, p])) for t, p in sorted(offsets)]


def _is_current(one: TransactionalId, ref: TransactionRef) -> bool:
    return (one.producer_id, one.epoch) == (ref.producer_id, ref.producer_epoch)


def _is_committed(entry: Entry) -> bool:
    return entry.transaction is None or entry.transaction.outcome == "committed"
