"""Locks of leaders: they show which leader's process is dead, and otherwise nothing."""

import os
import signal
import time
import traceback
from dataclasses import replace
from pathlib import Path

import pytest

from lakemq.jobs.doctor.namespace import FreeSpace
from lakemq.tables.storage.coordination import leader_locks
from lakemq.tables.storage.coordination.leader_locks import LOCK_FOLDER, SIGN_EVERY_MS, LeaderLocks, StandbySigns
from lakemq.tables.storage.object_stores.files import LocalFiles, ObjectFiles, open_files


@pytest.fixture
def files(tmp_path: Path) -> LocalFiles:
    return LocalFiles(str(tmp_path))


def names(files: LocalFiles) -> list[str]:
    return sorted(os.listdir(Path(files.root, LOCK_FOLDER)))


def hold_in_child(files: LocalFiles, name: str) -> int:
    """Fork a process that holds the lock of the leader `name` until it is killed."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        LeaderLocks(files).hold(name)
        os.write(write, b".")
        signal.pause()
        os._exit(1)
    assert os.read(read, 1) == b"."
    os.close(read)
    os.close(write)
    return child


def kill(child: int) -> None:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)


def test_a_killed_leader_is_dead_and_a_stopped_one_is_not(files: LocalFiles) -> None:
    child, locks = hold_in_child(files, "leader"), LeaderLocks(files)
    try:
        assert not locks.is_dead("leader")
        os.kill(child, signal.SIGSTOP)
        assert not locks.is_dead("leader")
    finally:
        kill(child)
    assert locks.is_dead("leader")


def test_a_leader_of_this_process_lives_also_for_others_of_the_process(files: LocalFiles) -> None:
    leader, standby = LeaderLocks(files), LeaderLocks(files)
    leader.hold("leader")
    assert not standby.is_dead("leader")
    assert not leader.is_dead("leader")
    leader.release()
    leader.release()
    assert not standby.is_dead("leader")  # after a handover there is no file, so nothing is known
    assert names(files) == []


def test_a_fork_of_the_leader_does_not_keep_its_lock(files: LocalFiles) -> None:
    """The leader forks a child that outlives it, as a multiprocessing worker may."""
    read, write = os.pipe()
    leader = os.fork()
    if leader == 0:
        locks = LeaderLocks(files)
        locks.hold("leader")
        grandchild = os.fork()
        if grandchild == 0:
            locks.release()  # the lock of its parent
            os.write(write, b".")
            signal.pause()
            os._exit(1)
        os.write(write, str(grandchild).encode())
        signal.pause()
        os._exit(1)
    output = b""
    while b"." not in output or len(output) < 2:
        output += os.read(read, 100)
    grandchild = int(output.replace(b".", b""))
    try:
        assert not LeaderLocks(files).is_dead("leader")
        kill(leader)
        assert LeaderLocks(files).is_dead("leader")
    finally:
        os.kill(grandchild, signal.SIGKILL)
        os.close(read)
        os.close(write)


def test_leader_of_another_boot_or_without_a_file_is_not_called_dead(files: LocalFiles) -> None:
    kill(hold_in_child(files, "leader"))
    locks = LeaderLocks(files)
    assert locks.is_dead("leader")
    Path(files.root, LOCK_FOLDER, "leader").write_bytes(b"of another boot")
    assert not locks.is_dead("leader")
    for name in ("nobody", "", "..", "../leader", "a/b", "x\0y", "x" * 1000):
        assert not locks.is_dead(name)


def test_no_leader_is_called_dead_on_a_shared_file_system(files: LocalFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    kill(hold_in_child(files, "leader"))
    monkeypatch.setattr(leader_locks, "_ONE_KERNEL", {})  # this process holds none of them
    locks = LeaderLocks(files)
    locks.hold("other")
    assert not locks.is_dead("leader")
    assert names(files) == ["leader"]


def test_no_leader_is_called_dead_on_an_object_store(tmp_path: Path) -> None:
    from obstore.store import LocalStore

    locks = LeaderLocks(ObjectFiles(LocalStore(str(tmp_path)), str(tmp_path)))
    locks.hold("leader")
    assert not locks.is_dead("leader")
    assert list(tmp_path.iterdir()) == []


def test_a_new_leader_removes_the_files_of_dead_ones_only(files: LocalFiles) -> None:
    kill(hold_in_child(files, "dead"))
    alive = hold_in_child(files, "alive")
    try:
        kill(hold_in_child(files, "of another boot"))
        Path(files.root, LOCK_FOLDER, "of another boot").write_bytes(b"of another boot")
        locks = LeaderLocks(files)
        locks.hold("new")
        locks.remove_dead()
        assert names(files) == ["alive", "new"]
    finally:
        kill(alive)


# -- How full a disk is: the figures are those of the file system, and little room is a finding ----------

GB = 1 << 30
ROOMY = FreeSpace(size_bytes=100 * GB, free_bytes=60 * GB, inodes=1_000_000, free_inodes=900_000)


@pytest.mark.parametrize(
    ("space", "is_low"),
    [
        (ROOMY, False),
        (replace(ROOMY, free_bytes=4 * GB), True),
        (replace(ROOMY, size_bytes=1000 * GB, free_bytes=6 * GB), False),
        (replace(ROOMY, free_inodes=100), True),
        (replace(ROOMY, inodes=0, free_inodes=0), False),
        (FreeSpace(4 << 20, 3 << 20, 0, 0), False),
        (FreeSpace(4 << 20, 0, 0, 0), True),
    ],
)
def test_space_is_low_below_its_bound(space: FreeSpace, is_low: bool) -> None:
    assert space.is_low == is_low


# -- Opening a store by its path and options: which kind it is, and what is refused ----------------------


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_path_without_a_scheme_opens_the_local_disk(tmp_path: Path, prefix: str):
    files = open_files(f"{prefix}{tmp_path}/ro ot", {"AWS_REGION": "unused"})
    assert isinstance(files, LocalFiles)
    assert files.root == f"{tmp_path}/ro ot"
    assert files.uri("a/b") == f"file://{tmp_path}/ro ot/a/b"
    assert open_files(files.uri("a/b")).root == f"{tmp_path}/ro ot/a/b"


@pytest.mark.parametrize(
    "root",
    ["", "s3:/a/b", "file:relative", "file://host/a", "s3://", "s3://b/a ", *(f"/a{c}b" for c in "%#?*[{|^\\\n")],
)
def test_a_root_that_cannot_be_opened_is_refused(root: str):
    with pytest.raises(ValueError, match=r"root: found .* expected"):
        open_files(root)


def test_a_store_takes_delta_rs_options():
    """Names in lower case count as well. Options that only Delta knows are ignored."""
    files = open_files(
        "s3://bucket/a/mq/",
        {
            "AWS_ACCESS_KEY_ID": "id",
            "aws_secret_access_key": "secret",
            "AWS_REGION": "eu-central-1",
            "AWS_ENDPOINT_URL": "http://localhost:9000",
            "AWS_ALLOW_HTTP": "true",
            "AWS_S3_ALLOW_UNSAFE_RENAME": "true",
            "retry_timeout": "10s",
        },
    )
    assert isinstance(files, ObjectFiles)
    assert files.uri("box/a") == "s3://bucket/a/mq/box/a"
    store = files._store
    assert (store.config["access_key_id"], store.config["secret_access_key"]) == ("id", "secret")
    assert (store.config["region"], store.config["endpoint"]) == ("eu-central-1", "http://localhost:9000")
    assert (store.config["bucket"], store.prefix) == ("bucket", "a/mq")
    assert store.client_options["allow_http"] in (True, "true")


@pytest.mark.parametrize(
    ("root", "options", "kind", "base"),
    [
        ("s3a://bucket/mq", {"AWS_REGION": "us-east-1", "AWS_TOKEN": "token"}, "S3Store", "bucket"),
        ("gcs://bucket/mq", {"GOOGLE_SKIP_SIGNATURE": "true"}, "GCSStore", "bucket"),
        ("gs://bucket/mq", {"GOOGLE_SKIP_SIGNATURE": "true"}, "GCSStore", "bucket"),
        (
            "abfss://container@account.dfs.core.windows.net/mq",
            {"AZURE_STORAGE_ACCOUNT_KEY": "a2V5"},
            "AzureStore",
            "container",
        ),
        (
            "az://container/mq",
            {"azure_storage_account_name": "me", "AZURE_STORAGE_SAS_TOKEN": "sv=1&sig=abc"},
            "AzureStore",
            "container",
        ),
    ],
)
def test_path_decides_the_kind_of_store(root: str, options: dict[str, str], kind: str, base: str):
    files = open_files(root, options)
    assert isinstance(files, ObjectFiles)
    store = files._store
    assert (type(store).__name__, store.prefix, files.root) == (kind, "mq", root)
    assert base in (store.config.get("bucket"), store.config.get("container_name"))


@pytest.mark.parametrize(
    ("root", "options", "message"),
    [
        ("az://container/mq", {}, "AZURE_STORAGE_ACCOUNT_NAME: found none"),
        ("s3://bucket/mq", {"timeout": "soon"}, "storage options: .*soon"),
        (
            "az://container/mq",
            {"AZURE_STORAGE_ACCOUNT_NAME": "me", "AZURE_STORAGE_ACCOUNT_KEY": "not base 64!"},
            "storage options: .*Invalid Access Key",
        ),
    ],
)
def test_options_that_cannot_be_used_are_refused(root: str, options: dict[str, str], message: str):
    with pytest.raises(ValueError, match=message) as refused:
        open_files(root, options)
    assert "not base 64!" not in "".join(traceback.format_exception(refused.value))


# -- signs of standbys: they appear while a sequencer stands by, and go when it leads, ends or is killed -------


def make_older(folder: Path, name: str, seconds: float) -> None:
    """Let the signs of a sequencer be as old as if it had been silent since."""
    for sign in (folder / "standbys").glob(f"{name}-*"):
        os.utime(sign, (time.time() - seconds,) * 2)


def test_standby_is_listed_until_its_sign_is_old(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path))
    signs = StandbySigns(files)
    assert signs.list_present(files.time_ms()) == []
    signs.put("host-1-ab", 1)
    signs.put("host-2-cd", 1)
    signs.put("host-1-ab", 2)
    assert signs.list_present(files.time_ms()) == ["host-1-ab", "host-2-cd"]
    assert len(list((tmp_path / "standbys").iterdir())) == 2, "the sign before is deleted"
    make_older(tmp_path, "host-2-cd", 3 * SIGN_EVERY_MS / 1000 + 5)
    assert signs.list_present(files.time_ms()) == ["host-1-ab"]
    signs.forget("host-1-ab")
    assert signs.list_present(files.time_ms()) == []


def test_sign_of_a_killed_standby_is_deleted_after_an_hour(tmp_path: Path) -> None:
    signs = StandbySigns(LocalFiles(str(tmp_path)))
    signs.put("killed-1-ab", 7)
    make_older(tmp_path, "killed-1-ab", 4_000)
    signs.put("alive-2-cd", 1)
    assert [sign.name for sign in (tmp_path / "standbys").iterdir()] == ["alive-2-cd-0000000001"]
