"""The step log: of all writers of a step exactly one succeeds, and followers read every step once and in order."""

import errno
import itertools
import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from clocks import ManualClock
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from stateful.runs import runs

from lakemq.engine.protocol.codec.steps import decode_head, decode_step_object
from lakemq.engine.protocol.errors import NotLeader
from lakemq.engine.protocol.values.journal import JournalEntry, Step
from lakemq.engine.protocol.values.log import Produced
from lakemq.engine.sequencer.step_log import LOOK_BEFORE_MS, StepLog
from lakemq.tables.storage.coordination.step_objects import (
    KEPT_MS,
    LOOK_MS,
    StepFollower,
    StepLost,
    StepsGone,
    list_steps,
    step_name,
)
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.tables.storage.object_stores.objects import Data, IdentifiedObject, MaybeThere


class Disk(LocalFiles):
    """A disk on which a test injects events while a step is put."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.before_put: Callable[[str], None] = lambda name: None
        self.after_put: Callable[[str], None] = lambda name: None
        self.calls: list[str] = []
        self.synced: list[str] = []

    def put(self, name: str, data: Data, *, durable: bool = True) -> str:
        self.calls.append("put")
        self.before_put(name)
        identity = super().put(name, data, durable=durable)
        self.after_put(name)
        return identity

    def identity(self, name: str) -> str | None:
        self.calls.append("look")
        return super().identity(name)

    def get_identified(self, name: str, limit: int | None = None) -> IdentifiedObject:
        self.calls.append("get")
        return super().get_identified(name, limit)

    def sync(self, names) -> None:  # type: ignore[no-untyped-def]
        self.synced += names
        super().sync(names)


@pytest.fixture
def disk(tmp_path: Path) -> Disk:
    new_disk = Disk(str(tmp_path))
    new_disk.put(step_name(0), b"the first object")
    new_disk.calls.clear()
    return new_disk


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock()


_nonces = itertools.count()


def make_log(disk: Disk, clock: ManualClock, step: int = 0) -> StepLog:
    identity = disk.identity(step_name(step))
    assert identity is not None
    disk.calls.clear()
    return StepLog(disk, "a namespace", step, identity, lambda: f"nonce-{next(_nonces)}", clock.steady_ms)


def make_step(number: int, subject: str = "t") -> Step:
    return Step(number, 1_000 + number, 1, [JournalEntry(Produced(subject))])


def append(log: StepLog, subject: str = "t") -> None:
    log.append(log.encode(make_step(log.step + 1, subject), "anna", 10_000))


def read_subject(disk: Disk, step: int) -> str:
    return decode_step_object(disk.get(step_name(step)))[1].entries[0].record.subject


def remove_up_to(disk: Disk, step: int) -> None:
    for number in range(step + 1):
        disk.delete([step_name(number)])


# -- appending ------------------------------------------------------------------------------------------


def test_append_of_a_step_takes_one_put_and_one_look(disk: Disk, clock: ManualClock) -> None:
    log = make_log(disk, clock)
    append(log)
    assert disk.calls == ["look", "put", "look"], "before the first put it looks, too"
    disk.calls.clear()
    append(log)
    assert disk.calls == ["put", "look"]
    assert [read_subject(disk, step) for step in (1, 2)] == ["t", "t"]
    head = decode_head(disk.get(step_name(2)))
    assert (head.step, head.leader, head.leader_epoch, head.lease_ms, head.namespace_id) == (
        2,
        "anna",
        1,
        10_000,
        "a namespace",
    )
    disk.calls.clear()
    clock.sleep(LOOK_BEFORE_MS + 1)
    append(log)
    assert disk.calls == ["look", "put", "look"]


def test_new_leader_syncs_the_last_step_of_its_predecessor(disk: Disk, clock: ManualClock) -> None:
    append(make_log(disk, clock))
    disk.synced.clear()
    make_log(disk, clock, 1)
    assert disk.synced == [step_name(1)]


def fail(error: OSError) -> Callable[[str], None]:
    def raise_it(name: str) -> None:
        raise error

    return raise_it


def test_append_succeeds_if_its_put_failed_after_it_landed(disk: Disk, clock: ManualClock) -> None:
    log = make_log(disk, clock)
    disk.after_put, disk.synced = fail(MaybeThere(errno.EIO, "the answer was lost")), []
    append(log)
    assert disk.synced == [step_name(1)]
    assert log.step == 1
    disk.after_put = fail(FileExistsError(errno.EEXIST, "the store repeated the put"))
    append(log)
    disk.after_put = lambda name: None
    append(log)
    assert [read_subject(disk, step) for step in (1, 2, 3)] == ["t", "t", "t"]


def test_append_raises_if_its_put_failed_and_no_step_is_there(disk: Disk, clock: ManualClock) -> None:
    log = make_log(disk, clock)
    disk.before_put = fail(OSError(errno.EIO, "no route to the store"))
    with pytest.raises(OSError, match="no route"):
        append(log)
    assert log.step == 0


def test_append_that_another_leader_forestalled_ends_the_term(disk: Disk, clock: ManualClock) -> None:
    anna, ben = make_log(disk, clock), make_log(disk, clock)

    def ben_is_first(name: str) -> None:
        disk.before_put = lambda name: None
        append(ben, "ben's")
        raise MaybeThere(errno.EIO, "timed out")

    disk.before_put = ben_is_first
    with pytest.raises(NotLeader, match="Another sequencer"):
        append(anna)
    assert read_subject(disk, 1) == "ben's"


def test_a_replaced_namespace_ends_the_term(disk: Disk, clock: ManualClock) -> None:
    log = make_log(disk, clock)
    append(log)
    disk.delete(disk.list("steps"))
    disk.put(step_name(0), b"another first object")
    with pytest.raises(NotLeader, match="removed or replaced"):
        log.check_continuity()


# -- following ------------------------------------------------------------------------------------------


def read_subjects(follower: StepFollower) -> list[str]:
    return [decode_step_object(body)[1].entries[0].record.subject for body in follower.read()]


def test_a_follower_reads_each_step_once_and_in_order(disk: Disk, clock: ManualClock) -> None:
    log, follower = make_log(disk, clock), StepFollower(disk, 0, clock.steady_ms)
    assert follower.read() == []
    for name in ("one", "two", "three"):
        append(log, name)
    disk.calls.clear()
    assert read_subjects(follower) == ["one", "two", "three"]
    assert disk.calls == ["get"] * 4 + ["look"]
    assert follower.step == 3
    disk.calls.clear()
    assert follower.read() == []
    assert disk.calls == ["get"]
    append(log, "four")
    disk.calls.clear()
    assert read_subjects(follower) == ["four"]
    assert disk.calls == ["get"] * 2


def test_follower_whose_clock_stood_still_ignores_steps_left_behind(disk: Disk, clock: ManualClock) -> None:
    """A virtual machine was suspended, with both. Other leaders went on meanwhile, and removed steps."""
    log, follower = make_log(disk, clock), StepFollower(disk, 0, clock.steady_ms)
    append(log)
    follower.read()
    for _ in range(3):
        append(make_log(disk, clock, max(list_steps(disk))))
    remove_up_to(disk, 3)
    disk.after_put = lambda name: make_later(Path(disk.root, name), KEPT_MS)
    with pytest.raises(NotLeader):
        append(log, "never decided")
    assert read_subject(disk, 2) == "never decided"
    with pytest.raises(StepsGone):
        follower.read()


def make_later(path: Path, by_ms: int) -> None:
    """Let an object be put later by the store's clock."""
    written_s = path.stat().st_mtime + by_ms / 1000
    os.utime(path, (written_s, written_s))


@pytest.mark.parametrize("lost", [[2], [2, 3]])
def test_a_follower_that_begins_notices_that_a_step_is_lost(disk: Disk, clock: ManualClock, lost: list[int]) -> None:
    log = make_log(disk, clock)
    for _ in range(4):
        append(log)
    disk.delete(map(step_name, lost))
    with pytest.raises(StepLost, match=rf"{step_name(2)} is missing, and {step_name(4)} is there"):
        StepFollower(disk, 0, clock.steady_ms).read()


def test_steps_that_are_removed_before_a_follower_lists_them_are_not_lost(disk: Disk, clock: ManualClock) -> None:
    log, follower = make_log(disk, clock), StepFollower(disk, 0, clock.steady_ms)
    for _ in range(4):
        append(log)

    def list_late(prefix: str, limit: int | None = None) -> Sequence[str]:
        append(log)
        append(log)
        remove_up_to(disk, 5)
        return LocalFiles.list(disk, prefix, limit)

    disk.list = list_late  # type: ignore[method-assign]
    with pytest.raises(StepsGone):
        follower.read()


def test_a_follower_lists_steps_only_when_none_has_come_for_long(disk: Disk, clock: ManualClock) -> None:
    """A list is a request to a store, and an expensive one."""
    log, follower = make_log(disk, clock), StepFollower(disk, 0, clock.steady_ms)
    assert follower.read() == []
    for _ in range(3):
        append(log)
    disk.delete([step_name(2)])
    disk.list = lambda prefix, limit=None: pytest.fail("a list")  # type: ignore[method-assign]
    assert read_subjects(follower) == ["t"]
    clock.sleep(LOOK_MS - 1)
    assert follower.read() == []
    del disk.list
    clock.sleep(1)
    with pytest.raises(StepLost):
        follower.read()


def test_a_step_that_is_put_while_the_steps_are_listed_is_not_lost(disk: Disk, clock: ManualClock) -> None:
    log, follower = make_log(disk, clock), StepFollower(disk, 0, clock.steady_ms)
    append(log)

    def list_late(prefix: str, limit: int | None = None) -> Sequence[str]:
        append(log)
        append(log)
        return LocalFiles.list(disk, prefix, limit)

    disk.list = list_late  # type: ignore[method-assign]
    assert read_subjects(follower) == ["t"]
    del disk.list
    assert read_subjects(follower) == ["t", "t"]


class Killed(BaseException):
    """The process was killed."""


def die(name: str) -> None:
    raise Killed


class Log(RuleBasedStateMachine):
    """Leaders come, stop anywhere and go on; steps are removed in ascending order; followers read now and then.

    The model is the list of steps that count: `append` returned, or its leader was killed right after the put.
    """

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory(prefix="lakemq-steps-")
        self.disk, self.clock = Disk(self.folder.name), ManualClock()
        self.disk.put(step_name(0), b"the first object")
        self.decided: list[str] = []
        self.leaders = [make_log(self.disk, self.clock)]
        self.landed_at_ms: list[int] = [self.clock.ms]
        self.followers = [(StepFollower(self.disk, 0, self.clock.steady_ms), 0, list[str]())]
        self.oldest = 0
        self.names = itertools.count()

    def teardown(self) -> None:
        self.folder.cleanup()

    def put_by(self, leader: StepLog) -> None:
        name = f"step {next(self.names)}"
        try:
            append(leader, name)
        except NotLeader:
            self.leaders.remove(leader)
        else:
            self.decided.append(name)
            self.landed_at_ms.append(self.clock.ms)
            assert leader.step == len(self.decided)

    @rule()
    def take_over(self) -> None:
        self.leaders.append(make_log(self.disk, self.clock, len(self.decided)))

    @precondition(lambda self: self.leaders)
    @rule(pick=st.randoms(use_true_random=False), stopped=st.booleans())
    def lead(self, pick, stopped: bool) -> None:  # type: ignore[no-untyped-def]
        leader = pick.choice(self.leaders)
        if stopped and len(self.leaders) > 1:
            other_leaders = [other for other in self.leaders if other is not leader]

            def meanwhile(name: str) -> None:
                self.disk.before_put = lambda name: None
                for other in other_leaders:
                    self.put_by(other)
                self.clock.sleep(KEPT_MS)
                self.remove(pick.randint(0, 5))

            self.disk.before_put = meanwhile
        self.put_by(leader)
        self.disk.before_put = lambda name: None

    @rule()
    def die_after_put(self) -> None:
        """A leader at the newest step puts the next one, and is killed before it checks the result."""
        leader, name = make_log(self.disk, self.clock, len(self.decided)), f"step {next(self.names)}"
        self.disk.after_put = die
        with pytest.raises(Killed):
            append(leader, name)
        self.disk.after_put = lambda name: None
        self.decided.append(name)
        self.landed_at_ms.append(self.clock.ms)

    @rule(count=st.integers(1, 5))
    def remove(self, count: int) -> None:
        """Remove steps that are old enough, never the newest."""
        for _ in range(count):
            if self.oldest >= len(self.decided) or self.landed_at_ms[self.oldest + 1] + KEPT_MS > self.clock.ms:
                return
            self.disk.delete([step_name(self.oldest)])
            self.oldest += 1

    @rule(ms=st.sampled_from([1, 1_000, LOOK_MS, KEPT_MS]))
    def wait(self, ms: int) -> None:
        self.clock.sleep(ms)

    @rule(pick=st.randoms(use_true_random=False))
    def follow(self, pick) -> None:  # type: ignore[no-untyped-def]
        follower, begun_at, subjects = pick.choice(self.followers)
        try:
            subjects += read_subjects(follower)
        except StepsGone:
            self.followers.remove((follower, begun_at, subjects))
            self.load()
        else:
            assert subjects == self.decided[begun_at:], "what is decided by now, and nothing else"

    @rule()
    def load(self) -> None:
        step = self.oldest
        self.followers.append((StepFollower(self.disk, step, self.clock.steady_ms), step, []))

    @invariant()
    def check_decided_steps(self) -> None:
        for step in range(max(1, self.oldest), len(self.decided) + 1):
            assert read_subject(self.disk, step) == self.decided[step - 1]


TestLog = Log.TestCase
TestLog.settings = runs(60, 40)
