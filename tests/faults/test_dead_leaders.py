"""A killed leader is noticed by its lock, so processes on its machine do not wait for its lease."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from faults.commands import LEASE_MS, Process, lakemq

SOON_S = 60
"""On a loaded machine a command takes seconds to start. The lease is far longer."""


def test_a_standby_leads_when_the_leader_is_killed(path: Path, start: Callable[..., Process]) -> None:
    path.with_name("lakemq.yaml").write_text("lease.ms: 300000\n")
    first = start("serve")
    name = first.wait_for_line("leads with epoch 1").split()[2]
    second = start("serve")
    second.wait_for_line(f"stands by: {name} leads with epoch 1")
    first.signal(signal.SIGKILL)
    killed_s = time.monotonic()
    second.wait_for_line(f"{name} has ended without handing over its lease")
    second.wait_for_line("leads with epoch 2")
    assert time.monotonic() - killed_s < SOON_S
    lakemq(path, "topics", "create", "t")


@pytest.mark.extended
def test_step_waits_out_the_lease_of_a_stopped_leader(path: Path, start: Callable[..., Process]) -> None:
    serving = start("serve")
    serving.wait_for_line("leads with epoch 1")
    serving.signal(signal.SIGSTOP)
    stopped_s = time.monotonic()
    step = start("step")
    step.wait_for_line(", which leads: until that decides or renews something")
    assert step.wait_for_exit() == 0
    assert time.monotonic() - stopped_s > LEASE_MS / 1000
    serving.signal(signal.SIGCONT)
    serving.wait_for_line("leads with epoch 3")  # its process lives, so it leads again as soon as no other one does
