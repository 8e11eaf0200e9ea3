"""A namespace that is broken in six ways at once by real processes; a test stops its sequencer or fills its disk."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa

import lakemq
from lakemq.engine.client.sequencers import read_leadership

ROLES = Path(__file__).with_name("roles.py")
COMMAND = [sys.executable, "-m", "lakemq.jobs.cli"]
DISK_BYTES = 96 << 20
LEASE_MS = 1_000
PARTITIONS = 4
_PATIENCE_S = 180

HOT_KEY_MESSAGES, OTHER_MESSAGES = 3_000, 1_000


@dataclass(frozen=True)
class BrokenNamespace:
    """The namespace, and the processes that work on it.

    Attributes:
        console: the address of its console.
        broken_at: a time, in ISO 8601, at which all faults were there.
    """

    path: Path
    sequencer: subprocess.Popen[str]
    console: str
    broken_at: str

    def run(self, script: str) -> str:
        """Run lines of a shell as an operator types them, and return what they print, also as findings."""
        function = f'lakemq() {{ {" ".join(COMMAND)} "$@"; }}'
        environment = {**os.environ, "LAKEMQ_PATH": str(self.path), "COLUMNS": "400"}
        done = subprocess.run(
            ["bash", "-c", f"{function}\n{script}"], env=environment, capture_output=True, text=True, timeout=300
        )
        assert done.returncode in (0, 1), (script, done.stdout, done.stderr)
        return done.stdout + done.stderr

    @contextmanager
    def stopped_sequencer(self) -> Iterator[None]:
        """Stop the sequencer, as a debugger or a frozen machine does, and wait until it counts as silent."""
        self.sequencer.send_signal(signal.SIGSTOP)
        try:
            _wait(lambda: _is_silent(self.path), "silence of the sequencer")
            yield
        finally:
            self.sequencer.send_signal(signal.SIGCONT)

    @contextmanager
    def full_disk(self) -> Iterator[None]:
        """Fill the disk to its last block."""
        filler = self.path.parent / "filler"
        try:
            # without a buffer, which closing the file would write once more
            with filler.open("wb", buffering=0) as file, suppress(OSError):
                while file.write(b"x" * 65_536):
                    pass
            yield
        finally:
            filler.unlink()


def mount_disk(folder: Path) -> str | None:
    """Mount a small disk in memory. Return why that is not possible, or None."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(folder)]
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        return str(error)
    return done.stderr.strip() if done.returncode else None


@contextmanager
def open_broken_namespace(disk: Path) -> Iterator[BrokenNamespace]:
    """Yield a namespace in a folder of the disk. Its processes end with the block."""
    path = disk / "mq"
    settings = disk / "lakemq.yaml"
    settings.write_text(f"lease.ms: {LEASE_MS}\nproject.interval.ms: 200\n")
    with ExitStack() as stack:
        start = _Starter(stack, path, disk)
        with lakemq.connect(str(path), create=True, conf=str(settings)) as mq:
            sequencer = start.command("--conf", str(settings), "serve", ready="leads with epoch")
            _publish(mq)
            for role in ("work", "hang", "refuse", "lag", "leave_open", "flood"):
                start.role(role)
            _wait(lambda: len(mq.groups.members("billing")) == 2 and _all_owned(mq), "share for both members")
            _publish_orders(mq)
            _wait_until_broken(mq)
            mq.sql("SELECT 1", wait_ms=60_000)  # the tables hold it, too
        address = start.read_console_address()
        yield BrokenNamespace(path, sequencer, address, time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()))


class _Starter:
    """Starts processes that are killed when the stack is unwound."""

    def __init__(self, stack: ExitStack, path: Path, logs: Path) -> None:
        self._stack, self._path, self._logs = stack, path, logs

    def command(self, *arguments: str, ready: str) -> subprocess.Popen[str]:
        process = self._start([*COMMAND, "--path", str(self._path), *arguments], arguments[-1])
        _wait(lambda: ready in self._read_log(arguments[-1]), ready)
        return process

    def role(self, role: str) -> None:
        process = self._start([sys.executable, str(ROLES), role, str(self._path)], role)
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n", self._read_log(role)

    def read_console_address(self) -> str:
        self.command("console", "--port=0", ready="the console is at")
        (address,) = re.findall(r"the console is at (\S+)/", self._read_log("--port=0"))
        return address

    def _start(self, command: list[str], name: str) -> subprocess.Popen[str]:
        log = self._stack.enter_context((self._logs / f"{name}.log").open("w"))
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        self._stack.callback(_kill, process)
        return process

    def _read_log(self, name: str) -> str:
        return (self._logs / f"{name}.log").read_text()


def _kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.wait(30)
    if process.stdout:
        process.stdout.close()


def _publish(mq: lakemq.Connection) -> None:
    for topic, partitions in (("orders", PARTITIONS), ("mails", 1), ("exports", 2), ("clicks", 4), ("reminders", 2)):
        mq.topics.create(topic, partitions)
    _publish_orders(mq)
    mq.publish("mails", pa.table({"value": ["to ann", "not a mail", "to bob"]}))
    keys = ["robot"] * HOT_KEY_MESSAGES + [f"user {n}" for n in range(OTHER_MESSAGES)]
    mq.publish("clicks", pa.table({"key": keys, "value": ["click"] * len(keys)}))
    mq.publish("exports", pa.table({"value": ["row 0"], "partition": [1]}))


def _publish_orders(mq: lakemq.Connection) -> None:
    numbers = range(2_000)
    mq.publish("orders", pa.table({"key": [f"c{n % 97}" for n in numbers], "value": [f"order {n}" for n in numbers]}))


def _all_owned(mq: lakemq.Connection) -> bool:
    owners = {assignment.owner for assignment in mq.groups.assignments("billing")}
    return len(owners) == 2 and None not in owners


def _is_silent(path: Path) -> bool:
    with lakemq.connect(str(path)) as mq, mq.observer().look() as observation:
        return read_leadership(mq.namespace.files, observation.state).is_silent


def _wait_until_broken(mq: lakemq.Connection) -> None:
    """Wait until each fault shows: the silent member for longer than its interval of polls, and the dead letter."""
    _wait(lambda: sum(count.messages for count in mq.dead_letters.counts()) == 1, "dead letter")
    _wait(lambda: any(stall.kind == "silent" for stall in mq.groups.stalls("billing")), "silent member")
    _wait(lambda: any(lag.committed_offset for lag in mq.groups.lag("shipping")), "commit of shipping")


def _wait(holds: Callable[[], bool], event: str) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline_s, f"no {event} within {_PATIENCE_S} s"
        time.sleep(0.2)


def unmount_disk(folder: Path) -> None:
    """Unmount what `mount_disk` has mounted."""
    subprocess.run(["umount", "-l", str(folder)], check=True)
