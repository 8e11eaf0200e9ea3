"""Ranges that are due much later are read while the sequencer already works. No answer depends on the progress."""

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest
from unit.served import CONFIG, new_topic, served, until, values
from unit.test_waiting_rows import make_row

import lakemq
from lakemq.engine.namespace import waiting_rows
from lakemq.engine.namespace.waiting_rows import LaterRanges, WaitingRows
from lakemq.engine.protocol.errors import TableDamaged
from lakemq.engine.protocol.rows.delays import restore_pieces
from lakemq.engine.protocol.values.state import State
from lakemq.errors import StorageError
from lakemq.tables.specs.messages import DELAYED, HOUR_MS, DelayedRow
from lakemq.tables.storage.delta.store import Store
from lakemq.tables.storage.native_calls import Workers
from lakemq.tables.storage.object_stores.local_files import LocalFiles

DAY_MS = 24 * HOUR_MS


@pytest.fixture
def gate(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """An event. Later ranges are read once it is set."""
    gate, read = threading.Event(), WaitingRows.read

    def read_behind_gate(
        self: WaitingRows, first_hour: int | None = None, last_hour: int | None = None
    ) -> Iterator[pa.Table]:
        if first_hour is not None:
            assert gate.wait(300)
        yield from read(self, first_hour, last_hour)

    monkeypatch.setattr(WaitingRows, "read", read_behind_gate)
    monkeypatch.setattr(waiting_rows, "MIN_ROWS", 1)
    yield gate
    gate.set()


@pytest.mark.slow
def test_steps_do_not_wait_for_ranges_due_much_later(tmp_path: Path, gate: threading.Event) -> None:
    with served(tmp_path) as mq:
        topic = new_topic(mq)
        mq.topics.alter(topic, {"delay.slot.ms": 50})
        receipts = [mq.delayed.schedule(topic, f"later {number}", delay_ms=DAY_MS) for number in range(3)]
        mq.delayed.schedule(topic, "soon", delay_ms=100)
    with served(tmp_path) as mq:
        until(lambda: values(mq, topic) == ["soon"])
        with mq.producer() as producer:
            producer.send(topic, "now").result()
        mq.delayed.schedule(topic, "new", delay_ms=50)
        until(lambda: values(mq, topic) == ["soon", "now", "new"])
        assert not gate.is_set()
        outcomes: list[str] = []
        cancel = threading.Thread(target=lambda: outcomes.append(mq.delayed.cancel(receipts[0])))
        cancel.start()
        cancel.join(0.5)
        assert outcomes == []
        gate.set()
        cancel.join(60)
        assert outcomes == ["cancelled"]
        assert mq.delayed.reschedule(receipts[1], delay_ms=0).outcome == "rescheduled"
        until(lambda: values(mq, topic) == ["soon", "now", "new", "later 1"])
        (waiting,) = mq.delayed.all()
        assert waiting.messages == 1
    with served(tmp_path) as mq:
        assert mq.delayed.cancel(receipts[2]) == "cancelled"
        assert mq.delayed.all() == []


@pytest.mark.extended
@pytest.mark.slow
def test_step_gives_up_waiting_for_ranges_due_much_later(
    tmp_path: Path, gate: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(waiting_rows, "LONGEST_WAIT_S", 0.4)
    with served(tmp_path) as mq:
        receipt = mq.delayed.schedule(new_topic(mq), "later", delay_ms=DAY_MS)
    with lakemq.connect(str(tmp_path / "mq"), config={**CONFIG, "lease.ms": 500}) as mq:
        sequencer = mq.sequencer()
        until(sequencer.try_lead)
        outcomes: list[str] = []
        cancel = threading.Thread(target=lambda: outcomes.append(mq.delayed.cancel(receipt)))
        cancel.start()

        def has_given_up() -> bool:
            try:
                sequencer.step()
            except StorageError as error:
                return "due much later were not read in 0.4 s" in str(error)
            return False

        until(has_given_up)
        assert not sequencer.leads
        gate.set()
        with mq.serving():
            cancel.join(60)
        assert outcomes == ["cancelled"], "the letter was not lost"


# -- the ranges alone -------------------------------------------------------------------------------------


def store_rows(tmp_path: Path, rows: list[DelayedRow]) -> tuple[Store, WaitingRows]:
    store = Store(LocalFiles(tmp_path))
    store.create(DELAYED)
    handle = store.open(DELAYED)
    handle.append_at(handle.version, DELAYED.table(rows), 1)
    return store, WaitingRows(handle, 1)


def make_later_row(key: int) -> DelayedRow:
    """Return a range that is due `key` seconds after the first day."""
    due_ms = DAY_MS + key * 1000
    return replace(make_row(key, 1, False), due_hour=due_ms // HOUR_MS, first_due_ms=due_ms, last_due_ms=due_ms)


def test_reading_later_gives_the_state_of_reading_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_rows, "MIN_ROWS", 0)
    changed = replace(make_later_row(7), cancelled_rows=[3, 5], rescheduled_rows=[5], waiting_count=6)
    near = replace(make_row(1, 1, False), due_hour=0, first_due_ms=5000, last_due_ms=5000)
    store, rows = store_rows(tmp_path, [near, *map(make_later_row, range(100, 300)), changed])
    expected, state, later = State(), State(), LaterRanges(Workers(1, "test-later"), 0)
    restore_pieces(expected, rows.read())
    restore_pieces(state, rows.read(last_hour=later.start(store, rows, state)))
    assert len(state.delays.ranges.unpacked) == 1
    assert state.delays.ranges.first_idle_ms() <= DAY_MS
    assert state.delays.count_pending(1) == expected.delays.pending[1]
    assert state == expected
    assert state.delays.pending == expected.delays.pending
    assert later.is_done


def test_ranges_that_are_due_are_never_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The clock may even jump beyond the hour after which ranges are read later."""
    monkeypatch.setattr(waiting_rows, "MIN_ROWS", 0)
    store, rows = store_rows(tmp_path, [make_later_row(key) for key in range(10)])
    state, later = State(), LaterRanges(Workers(1, "test-later"), 0)
    restore_pieces(state, rows.read(last_hour=later.start(store, rows, state)))
    assert len(state.delays.ranges.wake(DAY_MS + 4000, 1000, 16)) == 5


def test_open_transactions_are_found_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_rows, "MIN_ROWS", 0)
    open_row = replace(make_later_row(3), state="open", producer_id=1, producer_epoch=0, transactional_id="x")
    store, rows = store_rows(tmp_path, [make_later_row(2), open_row])
    state, later = State(), LaterRanges(Workers(1, "test-later"), 0)
    assert later.start(store, rows, state) is None
    restore_pieces(state, rows.read())
    assert list(state.delays.open) == [(1, 0)]


def test_damage_is_reported_whenever_the_ranges_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(waiting_rows, "MIN_ROWS", 0)
    store, rows = store_rows(tmp_path, [make_later_row(2), replace(make_later_row(3), released_count=99)])
    state, later = State(), LaterRanges(Workers(1, "test-later"), 0)
    later.start(store, rows, state)
    for _ in range(2):
        with pytest.raises(TableDamaged, match="not as it was written"):
            state.delays.count_pending(1)


def test_reading_ends_with_the_term(tmp_path: Path, gate: threading.Event) -> None:
    store, rows = store_rows(tmp_path, [make_later_row(2)])
    state, later = State(), LaterRanges(Workers(1, "test-later"), 0)
    later.start(store, rows, state)
    later.stop()
    gate.set()
    with pytest.raises(OSError, match="term has ended"):
        state.delays.ranges.packed.complete()
