"""A namespace is deleted under its running leader: the leader notices, and the path is free for another one."""

import shutil
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pyarrow as pa
import pytest
from s3_server import S3Server
from unit.served import IdleLeader

import lakemq
from lakemq.engine.sequencer.projector import RENEWALS_INTERVAL_MS
from lakemq.errors import InconsistentClusterId, NamespaceError, NotLeader, RequestTimedOut, TableDamaged
from lakemq.tables.specs.journal import WATERMARKS
from lakemq.tables.specs.registry import TABLES
from lakemq.tables.storage.coordination.step_objects import list_steps, step_name
from lakemq.tables.storage.delta.commits import CommitConflict
from lakemq.tables.storage.delta.delta_log import log_folder

pytestmark = pytest.mark.slow


class Led(IdleLeader):
    """A leader whose namespace is deleted under it."""

    def delete_tables(self) -> None:
        for spec in TABLES:
            self.files.delete([*self.files.list(log_folder(spec.name)), *self.files.list(spec.name)])

    def delete_steps(self, up_to: int) -> None:
        self.files.delete([step_name(step) for step in list_steps(self.files) if step <= up_to])


@contextmanager
def led(path: str, storage_options: dict[str, str] | None = None) -> Iterator[Led]:
    with lakemq.connect(path, create=True, storage_options=storage_options) as mq:
        leader = Led(mq)
        yield leader
        with suppress(NamespaceError):
            leader.sequencer.resign()


@pytest.fixture(params=["disk", pytest.param("s3", marks=pytest.mark.extended)])
def leader(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Led]:
    path, options = str(tmp_path / "mq"), None
    if request.param == "s3":
        server: S3Server = request.getfixturevalue("s3")
        path, options = server.path(uuid.uuid4().hex), server.options
    with led(path, options) as opened:
        yield opened


def create_again(leader: Led) -> None:
    """Create a namespace at the path, and use it."""
    path, options = leader.mq.namespace.path, leader.mq.namespace.storage_options
    with lakemq.connect(path, create=True, storage_options=options) as mq:
        assert list_steps(mq.namespace.files) == [0]
        with mq.serving():
            mq.topics.create("t")
            assert [topic.topic for topic in mq.topics.list()] == ["t"]


def test_a_leader_whose_folder_is_gone_leaves_no_step_there(tmp_path: Path) -> None:
    with led(str(tmp_path / "mq")) as leader:
        leader.renew()
        shutil.rmtree(tmp_path / "mq")
        with pytest.raises(NamespaceError, match="is gone: none of its tables is there"):
            leader.renew()
        assert list_steps(leader.files) == []
        create_again(leader)


def test_a_step_that_follows_a_deleted_one_goes_when_the_tables_have_gone(leader: Led) -> None:
    leader.renew()
    leader.delete_steps(leader.sequencer.state.step)
    with pytest.raises(NotLeader):
        leader.renew()
    left_over = list_steps(leader.files)
    assert len(left_over) == 1
    with pytest.raises(TableDamaged):  # its tables may come back: nothing is removed
        leader.sequencer.try_lead()
    assert list_steps(leader.files) == left_over
    leader.delete_tables()
    with pytest.raises(NamespaceError, match="is gone"):
        leader.sequencer.try_lead()
    create_again(leader)


def test_steps_that_a_deletion_missed_do_not_go_on_without_tables(leader: Led) -> None:
    """The listing of the deletion was older than the newest steps, which go on from each other."""
    listed = leader.sequencer.state.step
    leader.renew()
    leader.delete_steps(listed)
    leader.delete_tables()
    leader.renew(RENEWALS_INTERVAL_MS)
    leader.wait_for_pass()
    with pytest.raises(NamespaceError, match="is gone"):
        leader.renew()
    create_again(leader)


def test_step_that_another_program_put_is_not_removed(leader: Led) -> None:
    leader.renew()
    leader.delete_steps(leader.sequencer.state.step)
    leader.delete_tables()
    leader.files.put(step_name(1), b"copied here")
    with pytest.raises(NamespaceError, match="is gone"):
        leader.renew()
    assert step_name(1) in leader.files.list("steps")
    with pytest.raises(NamespaceError, match="without its journal"):
        create_again(leader)


def test_a_commit_to_a_deleted_table_leaves_no_log_there(leader: Led) -> None:
    handle = leader.mq.namespace.store.open(WATERMARKS)
    leader.delete_tables()
    with pytest.raises(CommitConflict):
        handle.claim()
    assert leader.files.list(log_folder(WATERMARKS.name)) == []


def test_a_leader_leaves_neither_a_step_nor_a_commit_in_an_older_copy(leader: Led) -> None:
    """Such a step would be read when the steps of the copy reach it, and no reader reads a log with a gap."""
    for _ in range(3):
        leader.renew()
    handle = leader.mq.namespace.store.open(WATERMARKS)
    newest = max(leader.files.list(log_folder(WATERMARKS.name)))
    leader.files.delete([step_name(leader.sequencer.state.step), newest])
    before = [leader.files.list("steps"), leader.files.list(log_folder(WATERMARKS.name))]
    with pytest.raises(NotLeader):
        leader.renew()
    with pytest.raises(CommitConflict):
        handle.claim()
    assert [leader.files.list("steps"), leader.files.list(log_folder(WATERMARKS.name))] == before


def test_client_says_that_its_namespace_is_gone_and_creates_nothing(tmp_path: Path) -> None:
    path = tmp_path / "mq"
    with lakemq.connect(str(path), create=True) as mq, mq.serving():
        mq.topics.create("t")
        mq.publish("t", pa.table({"value": ["a"]}))
    with lakemq.connect(str(path), config={"request.timeout.ms": 200}) as mq:
        with pytest.raises(RequestTimedOut, match="Is a sequencer running"):
            mq.topics.create("u")
        other = lakemq.connect(str(path))  # it has read nothing yet
        shutil.rmtree(path)
        calls: list[Callable[[], object]] = [
            lambda: mq.topics.create("u"),
            lambda: mq.publish("t", pa.table({"value": ["a"]})),
            lambda: mq.publish("t", pa.table({"value": ["a" * 1_000_000]})),
            lambda: mq.groups.lag("g"),
            lambda: mq.sql("SELECT 1"),
            lambda: other.fetch("t"),
            lambda: next(other.tail("t")),
        ]
        for call in calls:
            with pytest.raises(NamespaceError, match="is gone"):
                call()
        other.close()
        assert not path.exists()


def test_client_says_that_another_namespace_is_in_its_place(tmp_path: Path) -> None:
    path, other = tmp_path / "mq", tmp_path / "other"
    with lakemq.connect(str(other), create=True) as mq, mq.serving():
        mq.topics.create("t")
    with lakemq.connect(str(path), create=True, config={"request.timeout.ms": 200}) as mq:
        path.rename(tmp_path / "moved")
        other.rename(path)
        with pytest.raises(InconsistentClusterId, match=r"Another namespace is at .*outcome .*unknown.*Found"):
            mq.topics.create("u")
        assert not list((path / "mailbox").glob("*"))
    with lakemq.connect(str(path)) as mq, mq.serving():
        assert [topic.topic for topic in mq.topics.list()] == ["t"]
