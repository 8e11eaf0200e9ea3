"""Workers: what becomes of messages whose handlers return, fail, take too long, or are stopped."""

# ruff: noqa: F401, F811  # fixtures are imported
import asyncio
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from typer.testing import CliRunner
from unit.pages import read_blocks, run_program

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.client.consume.worker import HandlerLoop, WorkerReport, count_ahead, describe_failure
from lakemq.engine.client.fetch.fetch_result import Message
from lakemq.errors import IllegalState, InvalidConfig, InvalidRequest, LakeMQError
from lakemq.jobs.cli import app
from lakemq.testing import (
    MovableClock,
    _mq_folder,
    mq,
    mq_clock,
    mq_settings,
    read_dead_letters,
    wait_until,
    wait_until_idle,
)

pytestmark = pytest.mark.slow

PATIENCE_S = 60


class Running:
    """A worker in a thread."""

    def __init__(self, mq: Connection, handler: Callable[[Message], object], **options: Any) -> None:
        self.stop = threading.Event()
        self.report: WorkerReport | None = None
        self.error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, args=(mq, handler), kwargs=options)
        self._thread.start()

    def _run(self, mq: Connection, handler: Callable[[Message], object], **options: Any) -> None:
        try:
            self.report = mq.run_worker(handler, ["orders"], group="ship", stop=self.stop, **options)
        except BaseException as error:
            self.error = error

    def join(self) -> None:
        self._thread.join(PATIENCE_S)
        assert not self._thread.is_alive()

    def end(self) -> WorkerReport:
        self.stop.set()
        self.join()
        assert self.error is None
        assert self.report is not None
        return self.report


Start = Callable[..., Running]
"""Starts a worker: the fixture `start`."""


@pytest.fixture
def start(mq: Connection) -> Iterator[Start]:
    mq.topics.create("orders", 1)
    workers: list[Running] = []

    def start(handler: Callable[[Message], object], **options: Any) -> Running:
        workers.append(Running(mq, handler, **options))
        return workers[-1]

    yield start
    for worker in workers:
        worker.stop.set()
        worker.join()


def publish(mq: Connection, *values: str, keys: list[str | None] | None = None) -> None:
    mq.publish("orders", pa.table({"value": list(values), "key": pa.array(keys or [None] * len(values), pa.string())}))


def wait_for(condition: Callable[[], object], what: str) -> None:
    wait_until(condition, what, PATIENCE_S)


def poll_rest(mq: Connection, count: int) -> list[Message]:
    """Let another member poll the messages that a worker has given back."""
    with mq.consumer("ship", topics=["orders"]) as other:
        rest: list[Message] = []
        wait_for(lambda: rest.__iadd__(other.poll(timeout_ms=100)) and len(rest) >= count, "the rest")
        return rest


class Blocked:
    """A handler that notes its messages, and ends when it may."""

    def __init__(self) -> None:
        self.begun, self.may_end = list[int](), threading.Event()

    def __call__(self, message: Message) -> None:
        self.begun.append(message.offset)
        self.may_end.wait(PATIENCE_S)


def test_each_message_is_acknowledged_when_its_handler_returns(mq: Connection, start: Start) -> None:
    publish(mq, *(f"order {n}" for n in range(500)))
    handled: list[bytes | None] = []
    worker = start(lambda message: handled.append(message.value))
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(500, 0, 0)
    assert set(handled) == {f"order {n}".encode() for n in range(500)}


def test_messages_of_a_key_are_handled_in_order_and_never_at_the_same_time(mq: Connection, start: Start) -> None:
    publish(mq, *(f"{n}" for n in range(400)), keys=[f"key {n % 7}" for n in range(400)])
    running: dict[bytes | None, int] = {}
    handled: dict[bytes | None, list[int]] = {}
    failed: set[int] = set()
    overlaps: list[Message] = []

    def handle(message: Message) -> None:
        if running.get(message.key):
            overlaps.append(message)
        running[message.key] = 1
        try:
            number = int(message.value or b"")
            if number % 50 == 0 and number not in failed:
                failed.add(number)
                raise ValueError("the first time")
            handled.setdefault(message.key, []).append(number)
        finally:
            running[message.key] = 0

    worker = start(handle, backoff_ms=[0])
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(400, 8, 0)
    assert overlaps == []
    assert handled == {f"key {k}".encode(): list(range(k, 400, 7)) for k in range(7)}


def test_handlers_run_at_the_same_time(mq: Connection, start: Start) -> None:
    publish(mq, *(f"order {n}" for n in range(4)))
    together = threading.Barrier(4)
    worker = start(lambda message: together.wait(PATIENCE_S), concurrency=4)
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(4, 0, 0)


def test_coroutines_run_at_the_same_time_on_one_loop(mq: Connection, start: Start) -> None:
    publish(mq, *(f"order {n}" for n in range(4)))
    begun: list[int] = []
    loops: set[int] = set()

    async def handle(message: Message) -> None:
        begun.append(message.offset)
        loops.add(id(asyncio.get_running_loop()))
        while len(begun) < 4:
            await asyncio.sleep(0.001)

    worker = start(handle, concurrency=4)
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(4, 0, 0)
    assert len(loops) == 1


@pytest.mark.parametrize(
    ("done_count", "elapsed_ms", "count"), [(0, 60_000, 16), (80, 1_000, 20), (16, 0, 4_000), (90_000, 1_000, 5_000)]
)
def test_worker_polls_as_many_messages_as_it_handles_in_250_ms(done_count: int, elapsed_ms: int, count: int) -> None:
    """At least two messages a thread. Few wait if handlers are slow: they are delivered again after a rebalance."""
    assert count_ahead(done_count, elapsed_ms, thread_count=8, were_idle=False) == count


def test_worker_doubles_its_polls_while_its_threads_are_idle() -> None:
    """Else it would poll two messages a thread for ever, where a poll takes more than a quarter of a second."""
    counts = [16]
    for _ in range(9):
        counts.append(count_ahead(counts[-1], 300, thread_count=8, were_idle=True))
    assert counts[-1] == 5_000


# -- a failed message comes again or becomes a dead letter ------------------------------------------------


def test_a_failed_message_comes_again_after_its_back_off_and_then_becomes_a_dead_letter(
    mq: Connection, mq_clock: MovableClock, start: Start
) -> None:
    mq.groups.create("ship", {"group.protocol": "queue", "max.redelivery.count": 1})
    publish(mq, "a book")
    tried: list[int] = []

    def handle(message: Message) -> None:
        tried.append(message.delivery_count)
        raise OSError("out of paper")

    worker = start(handle, backoff_ms=[30 * 60_000])
    wait_for(lambda: tried, "the first delivery")
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert tried == [1]
    mq_clock.advance(minutes=30)
    (letter,) = read_dead_letters(mq, "ship", at_least=1, timeout_s=PATIENCE_S)
    assert (letter.value, letter.reason, tried) == (b"a book", "given_up", [1, 2])
    assert letter.error.startswith("OSError: out of paper (test_worker.py, line ")
    assert letter.error.endswith(", in handle)")
    assert worker.end() == WorkerReport(0, 2, 0)


@pytest.mark.parametrize("options", [{"reject_for": ValueError}, {"retry_for": (OSError,)}])
def test_an_error_that_is_not_retried_makes_a_dead_letter_at_once(
    mq: Connection, start: Start, options: dict[str, Any]
) -> None:
    publish(mq, "a book", "a pen")

    def handle(message: Message) -> None:
        if message.value == b"a book":
            raise ValueError("no such book")

    worker = start(handle, **options)
    (letter,) = read_dead_letters(mq, "ship", at_least=1, timeout_s=PATIENCE_S)
    assert (letter.reason, letter.delivery_count) == ("rejected", 1)
    assert letter.error.startswith("ValueError: no such book (")
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(1, 0, 1)


def test_the_back_off_may_be_a_function_and_its_error_does_not_end_the_worker(mq: Connection, start: Start) -> None:
    publish(mq, "a book")
    asked: list[tuple[int, str]] = []

    def handle(message: Message) -> None:
        if message.delivery_count < 3:
            raise ValueError("not yet")

    def find_delay_ms(message: Message, error: Exception) -> int:
        asked.append((message.delivery_count, str(error)))
        return 1 // (message.delivery_count - 1)  # fails for the first delivery

    worker = start(handle, backoff_ms=find_delay_ms)
    wait_until_idle(mq, "ship", PATIENCE_S)
    wait_for(lambda: len(asked) == 2, "two failures")
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert asked == [(1, "not yet"), (2, "not yet")]
    assert worker.end() == WorkerReport(1, 2, 0)


def test_tasks_that_handlers_leave_running_are_cancelled_when_the_worker_stops(mq: Connection, start: Start) -> None:
    publish(mq, "a book")
    begun, ended = threading.Event(), threading.Event()
    left: list[asyncio.Task[None]] = []

    async def wait_for_a_printer() -> None:
        begun.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            ended.set()

    async def handle(message: Message) -> None:
        left.append(asyncio.create_task(wait_for_a_printer()))

    worker = start(handle)
    assert begun.wait(PATIENCE_S)
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(1, 0, 0)
    assert ended.is_set()


# -- time limits ------------------------------------------------------------------------------------------


def test_a_message_beyond_its_time_limit_is_given_back_while_its_handler_goes_on(
    mq: Connection, mq_clock: MovableClock, start: Start
) -> None:
    publish(mq, "a book")
    begun: list[int] = []
    may_end = threading.Event()

    def handle(message: Message) -> None:
        begun.append(message.delivery_count)
        if message.delivery_count == 1:
            may_end.wait(PATIENCE_S)

    worker = start(handle, time_limit_ms=3_600_000, backoff_ms=[0], concurrency=2)
    wait_for(lambda: begun, "the handler")
    mq_clock.advance(hours=1)
    wait_for(lambda: begun == [1, 2], "the next delivery")
    wait_until_idle(mq, "ship", PATIENCE_S)
    may_end.set()
    assert worker.end() == WorkerReport(1, 1, 0)


def test_a_message_beyond_its_time_limit_is_handled_again_although_its_handler_ends_meanwhile(
    mq: Connection, mq_clock: MovableClock, start: Start
) -> None:
    publish(mq, "a book", "a film")
    begun: list[tuple[bytes | None, int]] = []
    may_end = threading.Event()

    def handle(message: Message) -> None:
        begun.append((message.value, message.delivery_count))
        if begun == [(b"a book", 1)]:
            may_end.wait(PATIENCE_S)

    def let_handler_end(message: Message, error: Exception) -> int:
        may_end.set()
        wait_for(lambda: (b"a film", 1) in begun, "the thread to go on before the message is given back")
        return 0

    worker = start(handle, time_limit_ms=3_600_000, backoff_ms=let_handler_end, concurrency=1)
    wait_for(lambda: begun, "the handler")
    mq_clock.advance(hours=1)
    wait_for(lambda: (b"a book", 2) in begun, "the next delivery")
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(2, 1, 0)


def test_a_coroutine_beyond_its_time_limit_is_cancelled(mq: Connection, mq_clock: MovableClock, start: Start) -> None:
    publish(mq, "a book")
    begun: list[int] = []
    cancelled = threading.Event()

    async def handle(message: Message) -> None:
        begun.append(message.delivery_count)
        try:
            await asyncio.sleep(PATIENCE_S)
        except asyncio.CancelledError:
            cancelled.set()
            raise

    worker = start(handle, time_limit_ms=3_600_000, reject_for=TimeoutError)
    wait_for(lambda: begun, "the handler")
    mq_clock.advance(hours=1)
    (letter,) = read_dead_letters(mq, "ship", at_least=1, timeout_s=PATIENCE_S)
    assert letter.error == "TimeoutError: The handler took longer than its limit of 3600000 ms."
    assert cancelled.wait(PATIENCE_S)
    assert worker.end() == WorkerReport(0, 0, 1)


def test_a_worker_ends_with_an_error_when_handlers_that_do_not_end_have_all_threads(
    mq: Connection, mq_clock: MovableClock, start: Start
) -> None:
    publish(mq, "a book", "a pen")
    handle = Blocked()
    worker = start(handle, time_limit_ms=3_600_000, concurrency=1, stop_timeout_ms=0)
    wait_for(lambda: handle.begun, "the handler")
    mq_clock.advance(hours=1)
    wait_for(lambda: mq.groups.lag("ship")[0].lag == 2, "the lag")
    mq_clock.advance(hours=2)
    worker.join()
    handle.may_end.set()
    assert isinstance(worker.error, IllegalState)
    assert handle.begun == [0]


def test_a_blocked_event_loop_ends_the_worker_and_gets_no_further_messages(
    mq: Connection, mq_clock: MovableClock, start: Start
) -> None:
    publish(mq, *(f"order {n}" for n in range(10)))
    block = Blocked()

    async def handle(message: Message) -> None:
        block(message)

    worker = start(handle, time_limit_ms=3_600_000, concurrency=2, stop_timeout_ms=0)
    wait_for(lambda: block.begun, "the handler")
    mq_clock.advance(hours=1)
    mq_clock.advance(hours=2)
    worker.join()
    block.may_end.set()
    assert isinstance(worker.error, IllegalState)
    assert len(block.begun) == 1
    assert sum(message.delivery_count > 1 for message in poll_rest(mq, 10)) <= 2


def test_a_handler_that_returns_a_coroutine_or_a_generator_ends_the_worker(mq: Connection, start: Start) -> None:
    publish(mq, "a book")

    def handle(message: Message) -> Iterator[None]:
        yield

    worker = start(handle)
    worker.join()
    assert isinstance(worker.error, IllegalState)
    assert worker.error.found == "a generator, which it returned"
    loop = asyncio.new_event_loop()
    worker = start(lambda message: loop.create_future())
    worker.join()
    loop.close()
    assert isinstance(worker.error, IllegalState)
    assert [message.delivery_count for message in poll_rest(mq, 1)] == [3]


# -- a worker that stops gives back what it has not handled -----------------------------------------------


def test_a_stopped_worker_lets_handlers_end_and_gives_back_the_rest_unseen(mq: Connection, start: Start) -> None:
    publish(mq, *(f"order {n}" for n in range(20)))
    handle = Blocked()
    worker = start(handle, concurrency=2)
    wait_for(lambda: len(handle.begun) == 2, "two handlers")
    worker.stop.set()
    handle.may_end.set()
    assert worker.end() == WorkerReport(2, 0, 0)
    rest = poll_rest(mq, 18)
    assert sorted(message.offset for message in rest) == sorted(set(range(20)) - set(handle.begun))
    assert {message.delivery_count for message in rest} == {1}


def test_a_handler_that_does_not_end_after_a_stop_gives_its_message_back(mq: Connection, start: Start) -> None:
    publish(mq, "a book")
    handle = Blocked()
    worker = start(handle, stop_timeout_ms=0, retry_for=KeyError)
    wait_for(lambda: handle.begun, "the handler")
    assert worker.end() == WorkerReport(0, 1, 0)
    handle.may_end.set()
    assert [message.delivery_count for message in poll_rest(mq, 1)] == [2]


@pytest.mark.parametrize("is_coroutine", [False, True])
def test_an_error_that_is_no_exception_ends_the_worker_and_its_message_goes_back(
    mq: Connection, start: Start, is_coroutine: bool
) -> None:
    publish(mq, "a book")

    def handle(message: Message) -> None:
        raise SystemExit(3)

    async def handle_later(message: Message) -> None:
        raise SystemExit(3)

    worker = start(handle_later if is_coroutine else handle)
    worker.join()
    assert isinstance(worker.error, SystemExit)
    assert worker.error.code == 3
    assert [message.delivery_count for message in poll_rest(mq, 1)] == [2]


# -- arguments, the log and the command -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"concurrency": 0}, InvalidRequest),
        ({"retry_for": SystemExit}, InvalidRequest),
        ({"backoff_ms": []}, InvalidRequest),
        ({"backoff_ms": [-1]}, InvalidRequest),
        ({"stop": True}, InvalidRequest),
        ({"ack_mode": "auto"}, InvalidConfig),
    ],
)
def test_arguments_that_are_not_valid_are_refused(mq: Connection, options: dict[str, Any], error: type) -> None:
    with pytest.raises(error):
        mq.run_worker(print, ["orders"], group="ship", **options)
    with pytest.raises(InvalidRequest, match="handler"):
        mq.run_worker("print", ["orders"], group="ship")  # type: ignore[arg-type]


def test_the_log_names_each_failure_with_its_place_and_the_counts_at_the_end(
    mq: Connection, start: Start, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO", "lakemq.worker")
    publish(mq, "a book", "a pen")

    def handle(message: Message) -> None:
        if message.delivery_count == 1:
            raise KeyError("pen") if message.offset else ValueError("no book")

    worker = start(handle, backoff_ms=[0], reject_for=KeyError, concurrency=2)
    wait_until_idle(mq, "ship", PATIENCE_S)
    assert worker.end() == WorkerReport(1, 1, 1)
    logged = [(r.levelname, r.getMessage(), r.exc_info) for r in caplog.records if r.name == "lakemq.worker"]
    (begun, *failures, ended) = logged
    assert begun[:2] == ("INFO", "A worker of group ship has started, with 2 threads.")
    assert ended[1] == "The worker of group ship has stopped: 1 messages acknowledged, 1 given back, 1 rejected."
    retried, rejected = sorted(failures, key=lambda failure: "rejected" in failure[1])
    assert retried[:2] == (
        "WARNING",
        "A handler failed. The message is given back. orders-0, offset 0, delivery 1: "
        f"ValueError: no book (test_worker.py, line {handle.__code__.co_firstlineno + 2}, in handle)",
    )
    assert rejected[1].startswith("A handler failed. The message is rejected. orders-0, offset 1, delivery ")
    assert all(failure[2] for failure in failures), "with the traceback"


@pytest.mark.parametrize(
    ("handler", "complaint"),
    [
        ("ship", "found ship, expected MODULE:NAME"),
        ("no_such_module:ship", "module no_such_module cannot be imported"),
        ("broken_shop:ship", "RuntimeError: no printer"),
        ("os:no_such_name", "module os has no no_such_name"),
        ("os:name", "os:name is no function, but str"),
    ],
)
def test_the_command_refuses_what_is_no_handler(
    handler: str, complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken_shop.py").write_text('raise RuntimeError("no printer")\n')
    monkeypatch.chdir(tmp_path)
    ended = CliRunner().invoke(app, ["worker", handler, "--group", "ship", "--topics", "orders", "--path", "nowhere"])
    assert ended.exit_code == 2
    said = " ".join(ended.output.replace("│", " ").split())
    assert complaint in said


_USES_PANDAS = """
import signal

def ship(order):
    signal.raise_signal(signal.SIGTERM)
    import pandas, pyarrow
    print(pyarrow.array(pandas.Series(["a book", pandas.NA], dtype=object)).null_count)
"""


def test_a_handler_of_the_command_gives_arrow_values_of_pandas(mq: Connection, tmp_path: Path) -> None:
    mq.topics.create("orders", 1)
    publish(mq, "a book")
    (tmp_path / "shop.py").write_text(_USES_PANDAS)
    command = ["--path", mq.namespace.path, "worker", "shop:ship", "--group", "ship", "--topics", "orders"]
    ended = subprocess.run(
        [sys.executable, "-m", "lakemq.jobs.cli", *command], cwd=tmp_path, capture_output=True, text=True, check=True
    )
    assert ended.stdout.splitlines()[0] == "1"


def is_done(path: Path) -> bool:
    try:
        with lakemq.connect(str(path)) as mq:
            return sum(row.lag for row in mq.groups.lag("ship")) == 0
    except LakeMQError:  # not yet made
        return False


def test_first_program_of_workers_prints_its_output(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def start_when_done(_: float, call: Callable[[], None]) -> threading.Thread:
        """Stop the worker when all is done, and not after the five seconds of the page."""

        def run() -> None:
            wait_for(lambda: is_done(tmp_path / "data/shop"), "the end")
            call()

        return threading.Thread(target=run)

    handler, program, _, exactly_once = read_blocks("workers.md", "python")
    (tmp_path / "shop.py").write_text(handler)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shop", raising=False)
    monkeypatch.setattr(threading, "Timer", start_when_done)
    printed, printed_once = read_blocks("workers.md", "text")
    assert run_program(program, tmp_path) == printed
    assert run_program(exactly_once, tmp_path) == printed_once
    with lakemq.connect(str(tmp_path / "data/shop")) as mq, mq.serving():
        (letter,) = read_dead_letters(mq, "ship", at_least=1, timeout_s=PATIENCE_S)
    page = (Path(__file__).parents[2] / "docs/workers.md").read_text(encoding="utf-8")
    assert f"`{letter.error}`" in page
