"""Jobs that are killed and run again, without a sequencer that outlives them. All their work is done in the end."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pytest
from targets import extended_but
from unit.pages import read_blocks

import lakemq

pytestmark = pytest.mark.slow

CONFIG = {"engine.tick.ms": 1, "engine.idle.ms": 10, "lease.ms": 1_000}
COUNT = 600
QUEUE = pytest.param("queue", marks=pytest.mark.extended)
CLASSIC = pytest.param("classic", marks=pytest.mark.nightly)


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A namespace with orders, without a sequencer."""
    path = str(tmp_path / "mq")
    with lakemq.connect(path, create=True, config=CONFIG) as mq, mq.serving():
        mq.topics.create("orders", 4)
        mq.publish(
            "orders", pa.table({"key": [f"k{i}" for i in range(COUNT)], "value": [str(i) for i in range(COUNT)]})
        )
    return path


ELSEWHERE = """
from lakemq.engine.client.consume import membership
membership.read_own_identity = lambda: "a process of another machine"
"""

WORK = """
import os, signal, sys
import lakemq
path, protocol, dies = sys.argv[1:]
with lakemq.connect(path, config={"lease.ms": 1_000}) as mq, mq.serving():
    options = {"auto_offset_reset": "earliest", "heartbeat_interval_ms": 100, "session_timeout_ms": 6_000}
    with mq.consumer("billing", topics=["orders"], protocol=protocol, **options) as consumer:
        for number, batch in enumerate(consumer.until_end(max_records=100)):
            if number == 2 and dies == "dies":
                os.kill(os.getpid(), signal.SIGKILL)
            print(*(message.value.decode() for message in batch), flush=True)
            consumer.commit(batch)
"""

DIE = """
import os, signal
def die(times=[]):
    times.append(1)
    if len(times) == int(os.environ.get("DIE_AT", "0")):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def run(code: str, *arguments: str, folder: Path | None = None, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run a program in a process of its own."""
    environ = {**os.environ, **environ}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=300, check=False)


@pytest.fixture
def conf(tmp_path: Path) -> str:
    """A settings file, for programs that name no settings."""
    file = tmp_path / "conf.yaml"
    file.write_text("lease.ms: 1000\n")
    return str(file)


@pytest.mark.parametrize("protocol", extended_but([QUEUE], ["cooperative", QUEUE, CLASSIC]))
def test_a_job_that_is_killed_and_run_again_does_all_its_work(path: str, protocol: str) -> None:
    first = run(WORK, path, protocol, "dies")
    assert first.returncode == -signal.SIGKILL
    second = run(WORK, path, protocol, "lives")
    assert second.returncode == 0, second.stderr
    assert sorted(map(int, (first.stdout + second.stdout).split())) == list(range(COUNT))
    third = run(WORK, path, protocol, "lives")
    assert (third.returncode, third.stdout) == (0, "")


@pytest.mark.extended
def test_a_job_that_was_killed_elsewhere_is_waited_for_until_its_session_is_over(path: str) -> None:
    first = run(ELSEWHERE + WORK, path, "cooperative", "dies")
    second = run(WORK, path, "cooperative", "lives")
    assert second.returncode == 0, second.stderr
    assert sorted(map(int, (first.stdout + second.stdout).split())) == list(range(COUNT))


@pytest.mark.extended
def test_billing_job_of_the_docs_bills_each_order_once_though_it_is_killed(tmp_path: Path, conf: str) -> None:
    orders, *_ = read_blocks("README.md", "python")
    (billing,) = read_blocks("patterns.md", "python billing")
    assert run(orders, folder=tmp_path, LAKEMQ_CONF=conf).returncode == 0
    code = billing.replace("txn.send_offsets(batch)", "txn.send_offsets(batch); die()")
    assert code != billing
    code = f"{DIE}\n{code}"
    assert run(code, folder=tmp_path, LAKEMQ_CONF=conf, DIE_AT="2").returncode == -signal.SIGKILL
    second = run(code, folder=tmp_path, LAKEMQ_CONF=conf)
    assert (second.returncode, second.stdout) == (0, "1000 0\n"), second.stderr
