"""A command that waits for an answer says which sequencer it waits for, and a signal ends it before the lease ends."""

import signal
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.commands import Process, lakemq
from faults.processes import until

UNKNOWN = "Interrupted while waiting for an answer. The outcome is unknown: the request may still take effect."


@pytest.fixture
def stopped_leader(path: Path, start: Callable[..., Process]) -> Process:
    """A leader that is stopped, with a lease of minutes."""
    lakemq(path, "topics", "create", "t")
    path.with_name("lakemq.yaml").write_text("lease.ms: 300000\n")
    serving = start("serve")
    serving.wait_for_line("leads with")
    serving.signal(signal.SIGSTOP)
    return serving


@pytest.mark.extended
@pytest.mark.parametrize(
    ("command", "number"), [(("publish", "--topic", "t"), signal.SIGINT), (("topics", "create", "new"), signal.SIGTERM)]
)
def test_waiting_command_names_its_sequencer_and_ends_on_signal(
    path: Path, start: Callable[..., Process], stopped_leader: Process, command: tuple[str, ...], number: int
) -> None:
    name = stopped_leader.wait_for_line("leads with").split()[2]
    waiting = start(*command)
    waiting.stdin.write("1\n")
    waiting.stdin.close()
    line = waiting.wait_for_line("^no answer for ")
    assert f"{name} leads (epoch " in line
    assert "this command takes over" in line
    assert f"lakemq --path {path} doctor" in line
    waiting.signal(number)
    assert waiting.wait_for_exit() == 128 + number
    assert any(UNKNOWN in line for line in waiting.err)
    assert waiting.out == []


@pytest.mark.extended
def test_query_of_the_command_ends_on_sigint(path: Path, start: Callable[..., Process]) -> None:
    endless = "SELECT count(*) FROM range(1000000000000000) numbers WHERE range % 7 = 3"
    query = start("sql", "--dialect", "duckdb", f"SELECT 1; {endless}")
    # DuckDB starts within less than a second of processor time, so it is at work now.
    until(lambda: query.processor_s() > 2, "work of DuckDB")
    query.signal(signal.SIGINT)
    assert query.wait_for_exit() == 128 + signal.SIGINT
    # on a busy machine DuckDB may need longer than the grace period to stop
    assert query.err in (["INTERRUPTED: by SIGINT"], ["SIGINT: ended without waiting any longer"])
