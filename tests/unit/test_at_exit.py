"""Hooks at the end of the interpreter, and their time limits. `test_serving_end.py` shows their order, and forks."""

import logging
import threading
import time
from collections.abc import Callable

import duckdb
import pytest

from lakemq.engine.namespace.at_exit import ExitHooks, Stage
from lakemq.tables.storage.native_calls import NativeCalls

LONG_S = 30


def test_hanging_or_failing_hook_is_logged_and_others_run(caplog: pytest.LogCaptureFixture) -> None:
    hooks, calls, never_set = ExitHooks(), [], threading.Event()

    def fail() -> None:
        raise OSError("no space left")

    hooks.add(Stage.PRODUCERS, "The hanging producer", lambda: never_set.wait(LONG_S), 0.01)
    hooks.add(Stage.PRODUCERS, "The failing producer", fail, LONG_S)
    hooks.add(Stage.SERVING, "serving", lambda: calls.append("serving"), LONG_S)
    begun_s = time.monotonic()
    with caplog.at_level(logging.ERROR, "lakemq.exit"):
        hooks.run()
    never_set.set()
    assert calls == ["serving"]
    assert time.monotonic() - begun_s < LONG_S / 2
    assert "The hanging producer did not end within 0.01 s" in caplog.text
    assert "The failing producer could not be closed at exit: OSError: no space left" in caplog.text


# -- calls of native libraries --------------------------------------------------------------------------


def test_exit_interrupts_native_calls_waits_for_them_and_lets_no_daemon_thread_begin_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls, has_begun, may_run, events = NativeCalls(), threading.Event(), threading.Event(), list[str]()
    interrupted = threading.Event()

    class Query:
        def interrupt(self) -> None:
            if may_run.is_set():  # a query that does not run yet does not notice
                interrupted.set()

    closed = duckdb.connect()  # refuses to be interrupted
    closed.close()
    query = Query()
    for interruptible in (closed, query):
        calls.add_interruptible(interruptible)

    @calls.guard
    def call() -> None:
        has_begun.set()
        assert may_run.wait(30)
        assert interrupted.wait(30)
        events.append("interrupted")
        nested()

    @calls.guard
    def nested() -> None:
        events.append("nested")

    @calls.guard
    def fail() -> None:
        has_begun.set()
        may_run.wait(30)
        raise OSError("interrupted")

    def end_silently(function: Callable[[], None], event: str) -> None:
        with pytest.raises(SystemExit):
            function()
        events.append(event)

    running = threading.Thread(target=end_silently, args=(call, "no next piece"), daemon=True)
    running.start()
    assert has_begun.wait(30)
    has_begun.clear()
    failing = threading.Thread(target=end_silently, args=(fail, "failed"), daemon=True)
    failing.start()
    assert has_begun.wait(30)
    calls.end(timeout_s=0)
    assert [record.levelname for record in caplog.records] == ["ERROR"]
    ending = threading.Thread(target=lambda: (calls.end(30), events.append("end")), daemon=True)
    ending.start()
    may_run.set()
    for thread in running, failing, ending:
        thread.join(30)
    assert sorted(events) == ["end", "failed", "interrupted", "no next piece"]
    late = threading.Thread(target=end_silently, args=(nested, "late"), daemon=True)
    late.start()
    late.join(30)
    assert events[-1] == "late"
    nested()
    assert events[-1] == "nested", "the main thread may go on"
