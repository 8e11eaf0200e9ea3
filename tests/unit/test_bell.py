"""Waiting for new files in a folder: notifications wake the waiter, and without them it polls."""

import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from clocks import ManualClock
from faulty_files import FaultyFiles

from lakemq.engine.client.requests.requester import Requester
from lakemq.engine.namespace.clock import LOOK_MS, FolderWaiter, SystemClock
from lakemq.engine.protocol.codec.letter import encode_answer
from lakemq.engine.protocol.values.clients import Answer
from lakemq.engine.protocol.values.producers import InitProducer, ProducerDone
from lakemq.tables.storage.coordination.mailbox import Mailbox
from lakemq.tables.storage.object_stores import inotify
from lakemq.tables.storage.object_stores.files import LocalFiles

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="Linux tells")

LONG_S = 20.0


def new_watch(folder: Path) -> inotify.Watch:
    watch = inotify.watch(str(folder))
    assert watch is not None
    return watch


@pytest.mark.parametrize("named_temporaries", [False, True], ids=["unnamed", "named"])
def test_watch_reports_an_object_that_is_put(tmp_path: Path, named_temporaries: bool) -> None:
    (tmp_path / "f").mkdir()
    watch = new_watch(tmp_path / "f")
    LocalFiles(str(tmp_path), named_temporaries=named_temporaries).put("f/a", b"x")
    assert watch.event.wait(LONG_S)
    watch.event.clear()
    os.rename(tmp_path / "f" / "a", tmp_path / "b")
    os.rename(tmp_path / "b", tmp_path / "f" / "b")
    assert watch.event.wait(LONG_S)
    watch.close()


def test_a_watch_may_be_closed_while_another_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The garbage collector closes a dropped waiter's watch, at any allocation: also where the lock is held."""
    other = tmp_path / "other"
    other.mkdir()
    first = new_watch(tmp_path)

    class ClosesAnother(inotify.Watch):
        def __init__(self, descriptor: int) -> None:
            super().__init__(descriptor)
            first.close()

    monkeypatch.setattr(inotify, "Watch", ClosesAnother)
    with ThreadPoolExecutor(1) as threads:
        second = threads.submit(inotify.watch, str(other)).result(LONG_S)
    monkeypatch.undo()
    assert second is not None
    assert inotify._instance is not None
    third = new_watch(other)  # removes what is closed
    watched = [watch for watches in inotify._instance._watches.values() for watch in watches]
    assert (first in watched, second in watched) == (False, True)
    (tmp_path / "a").touch()
    (other / "a").touch()
    assert second.event.wait(LONG_S)
    assert third.event.wait(LONG_S)
    assert not first.event.is_set()
    second.close()
    third.close()


def test_removed_folder_is_reported_and_no_longer_watched(tmp_path: Path) -> None:
    folder = tmp_path / "f"
    folder.mkdir()
    bell = FolderWaiter(lambda: inotify.watch(str(folder)), SystemClock())
    bell.reset()
    assert bell.watch
    folder.rmdir()
    bell.wait(LONG_S * 1000, LONG_S * 1000)
    bell.reset()
    assert not bell.watch
    folder.mkdir()
    bell.reset()
    assert bell.watch
    bell.close()


def test_forked_child_has_its_own_watches_only(tmp_path: Path) -> None:
    watch = new_watch(tmp_path)
    child = os.fork()
    if child == 0:
        own_watch = inotify.watch(str(tmp_path))
        watch.close()
        (tmp_path / "child").touch()
        os._exit(0 if own_watch is not None and own_watch.event.wait(LONG_S) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert watch.event.wait(LONG_S)
    watch.close()


NO_INSTANCE_LEFT = """
import resource, sys
from lakemq.tables.storage.object_stores import inotify
used = max(int(fd) for fd in __import__("os").listdir("/proc/self/fd"))
resource.setrlimit(resource.RLIMIT_NOFILE, (used, used))
while True:
    try:
        sys.stdin.fileno(), __import__("os").dup(0)
    except OSError:
        break
assert inotify.watch("/") is None
assert inotify.watch("/") is None
"""


def test_no_watch_exists_if_inotify_has_no_instance_left() -> None:
    subprocess.run([sys.executable, "-c", NO_INSTANCE_LEFT], check=True, stdin=subprocess.DEVNULL)


def test_folder_without_notifications_is_polled(tmp_path: Path) -> None:
    """The watch is on another folder, so files appear without a notification, as on NFS."""
    clock = ManualClock()
    bell = FolderWaiter(lambda: new_watch(tmp_path), clock)
    waited = []
    for _ in range(5):
        bell.reset()
        before = clock.ms
        bell.wait(7)
        waited.append(clock.ms - before)
        bell.note_arrival()
    assert waited == [LOOK_MS] * 3 + [7] * 2


@pytest.mark.slow
def test_an_answer_is_noticed_without_looking_for_it_again_and_again(tmp_path: Path) -> None:
    files = FaultyFiles(str(tmp_path))
    mailbox = Mailbox(files)
    requester = Requester(mailbox, SystemClock(), lambda: "c", 60_000)

    def answer(number: int) -> None:
        results = [ProducerDone(number, 0)]
        mailbox.put_answer("c", number, encode_answer(Answer("c", number, 1, results)))  # type: ignore[arg-type]

    for number in range(1, 6):  # from the second one on the folder exists and can be watched
        threading.Timer(0.15, answer, [number]).start()
        files.reads.clear()
        assert requester.ask(InitProducer()) == ProducerDone(number, 0)
    assert len(files.reads) <= 4
    requester.close()
    assert files.folders("replies") == []
