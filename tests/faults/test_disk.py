"""A disk that is full, read-only, or has lost a file: errors are clear, no work is half done, and it goes on."""

import errno
import itertools
import logging
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
from faults.checks import check_all, check_log
from faults.messages import Acknowledged, value_of
from faults.processes import QUICK, TOPIC, until
from targets import nightly_but

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.protocol.errors import LakeMQError, NamespaceError, RequestTimedOut, StorageError

SIZE = 4 << 20
CONFIG = {**QUICK, "request.timeout.ms": 500, "inline.max.bytes": 65_536}


@contextmanager
def mount_small_disk(folder: Path) -> Iterator[Path]:
    """Mount a small disk in memory."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", f"size={SIZE}", "tmpfs", str(folder)]
    try:
        completed = subprocess.run(command, capture_output=True, text=True)
    except FileNotFoundError as error:
        pytest.skip(f"nothing can be mounted here: {error}")
    if completed.returncode:
        pytest.skip(f"nothing can be mounted here: {completed.stderr.strip()}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@pytest.fixture
def disk(tmp_path: Path, template: Path) -> Iterator[Path]:
    """A small disk with a namespace on it."""
    with mount_small_disk(tmp_path / "disk") as folder:
        shutil.copytree(template, folder / "namespace")
        yield folder


def fill(disk: Path, leave: int) -> Path:
    """Write a file that leaves only so many bytes."""
    path = disk / "filler"

    def fill_up() -> bool:
        """Return False if the sequencer, which goes on meanwhile, has taken some of the free space."""
        file = os.open(path, os.O_CREAT | os.O_WRONLY)
        try:
            os.posix_fallocate(file, 0, free(disk) - leave)
            return True
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            os.ftruncate(file, 0)
            return False
        finally:
            os.close(file)

    until(fill_up, "full disk")
    return path


def remount(disk: Path, how: str) -> None:
    """Wait until no process is writing, and remount."""
    command = ["mount", "-o", f"remount,{how}", str(disk)]
    until(lambda: subprocess.run(command, capture_output=True).returncode == 0, f"remount {how}")


def free(disk: Path) -> int:
    usage = os.statvfs(disk)
    return usage.f_bavail * usage.f_frsize


class Sender:
    """Sends numbered messages, one by one."""

    def __init__(self, mq: Connection) -> None:
        self.producer = mq.producer(linger_ms=0, delivery_timeout_ms=500)
        self.acknowledged: list[Acknowledged] = []
        self._numbers = itertools.count()

    def send(self, size: int = 0) -> None:
        value = value_of("p", next(self._numbers)) + "x" * size
        self.producer.send(TOPIC, value, key=value[:8])
        (((_, partition), (offset, _)),) = self.producer.flush().offsets().items()
        self.acknowledged.append(Acknowledged(value, partition, offset))

    def send_when_possible(self) -> None:
        """Send, and repeat that if the sequencer has not noticed yet that it can write again."""
        for _ in range(20):
            with suppress(RequestTimedOut):
                return self.send()
        raise AssertionError("it does not go on")


@pytest.mark.parametrize("leave", nightly_but([12_288], [0, 12_288, 40_960]))
def test_a_full_disk_refuses_or_waits_and_then_goes_on(leave: int, disk: Path, caplog: pytest.LogCaptureFixture):
    """The bytes left do not suffice for the letter, the rows, the journal, the projections or the
    answer.
    """
    path, refused = str(disk / "namespace"), []
    with lakemq.connect(path, config=CONFIG) as mq, caplog.at_level(logging.ERROR, "lakemq.serve"):
        serving, sender = mq.serving(), Sender(mq)
        sender.send_when_possible()
        filler = fill(disk, leave)
        for _ in range(40):  # a step takes a page or two; projections take more, but need no send
            try:
                sender.send(size=2000)
            except (StorageError, RequestTimedOut) as error:
                refused.append(error)
            if len(refused) == 3:
                break
        filler.unlink()
        sender.send_when_possible()
        assert refused, "the disk was never full"
        assert "No space left" in " ".join([*map(str, refused), caplog.text])
        assert serving.error is None
        check_log(mq, TOPIC, sender.acknowledged)
        sender.producer.close()
    check_all(path, TOPIC, sender.acknowledged)


@pytest.mark.extended
def test_serve_survives_a_disk_that_becomes_read_only(disk: Path, caplog: pytest.LogCaptureFixture):
    """Publishing fails, and reading goes on. Publishing goes on when the disk can be written again.

    A letter that went on a line may have been decided, as far as the client can tell. One that did not is refused.
    """
    path = str(disk / "namespace")
    with lakemq.connect(path, config=CONFIG) as mq:
        serving, sender = mq.serving(), Sender(mq)
        sender.send_when_possible()
        remount(disk, "ro")
        failures = (StorageError, RequestTimedOut)
        with caplog.at_level(logging.ERROR, "lakemq.serve"), pytest.raises(failures, match="Read-only file system"):
            sender.send()
        assert mq.fetch(TOPIC).record_count == 1
        with pytest.raises(NamespaceError, match="Read-only file system"):
            lakemq.connect(str(disk / "another"), create=True)
        with lakemq.connect(path, config=CONFIG) as other:
            assert other.fetch(TOPIC).record_count == 1
            with pytest.raises(LakeMQError, match="Read-only file system"):
                other.step_until_idle(wait_ms=2000)
        remount(disk, "rw")
        sender.send_when_possible()
        assert serving.error is None
        sender.producer.close()
    check_all(path, TOPIC, sender.acknowledged)
