"""The behaviours that every kind of Files shares, then those of each kind."""

import errno
import os
import pickle
import resource
import signal
import socket
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import obstore
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from object_servers import OBJECT_SERVERS

from lakemq.tables.storage.object_stores.files import Files, LocalFiles, ObjectFiles, open_files
from lakemq.tables.storage.object_stores.objects import MaybeThere

DISKS: dict[str, Callable[[str], Files]] = {
    "local": LocalFiles,
    "local, named temporaries": lambda root: LocalFiles(root, named_temporaries=True),
}


@pytest.fixture(params=DISKS)
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """Files on disk whose root does not exist yet. The first object creates it."""
    return DISKS[request.param](str(tmp_path / "root"))


@pytest.fixture(params=[*DISKS, *OBJECT_SERVERS])
def files(request: pytest.FixtureRequest, tmp_path: Path) -> Files:
    """Return an empty store of each kind of Files."""
    if request.param not in DISKS:
        server = request.getfixturevalue(request.param)
        return open_files(server.path(f"{uuid.uuid4().hex}/root"), server.options)
    return DISKS[request.param](str(tmp_path / "root"))


def list_everything(files: Files) -> list[str]:
    """Return all names in the store, including temporaries."""
    if isinstance(files, ObjectFiles):
        return sorted(meta["path"] for page in obstore.list(files._store) for meta in page)
    root = Path(files.root)
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path.is_file())


# -- put and get ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize(
    "data",
    [b"", b"x", bytes(range(256)) * 10_000, pa.py_buffer(b"buffer"), memoryview(b"..view..")[2:6]],
    ids=["empty", "one", "large", "buffer", "view"],
)
def test_object_that_was_put_is_read_back(files: Files, tmp_path: Path, data, durable: bool):
    files.put("folder/deep/name", data, durable=durable)
    assert files.get("folder/deep/name") == bytes(data)
    assert files.size("folder/deep/name") == len(bytes(data))
    assert list_everything(files) == ["folder/deep/name"]


def test_identity_changes_when_a_name_gets_another_object(files: Files):
    """Every reader gets the same identity. A later object under the same name has another one."""
    first = files.put("folder/name", b"one")
    assert first == files.identity("folder/name")
    assert files.get_identified("folder/name") == (b"one", first, files.modified_ms("folder/name"))
    files.delete(["folder/name"])
    assert files.identity("folder/name") is None
    with pytest.raises(FileNotFoundError):
        files.get_identified("folder/name")
    time.sleep(0.02)  # longer than a tick of the disk's clock
    assert files.put("folder/name", b"two") == files.identity("folder/name") != first


def test_second_put_under_a_name_is_refused(files: Files, tmp_path: Path):
    files.put("a", b"first")
    with pytest.raises(FileExistsError):
        files.put("a", b"second")
    with pytest.raises(FileExistsError), files.open_output("a") as sink:
        sink.write(b"third")
    assert files.get("a") == b"first"
    assert list_everything(files) == ["a"]


def test_missing_object_has_no_content_size_or_time(files: Files):
    files.put("folder/a", b"")
    for name in ("b", "folder/b", "none/b", "folder/a/b"):
        with pytest.raises((FileNotFoundError, NotADirectoryError)):
            files.get(name)
        assert files.size(name) is None
        assert files.modified_ms(name) is None
    with pytest.raises(FileNotFoundError):
        files.get("b")
    with pytest.raises(FileNotFoundError):
        files.open_input("b")
    # A folder is not an object.
    assert files.size("folder") is None
    assert files.modified_ms("folder") is None


def test_modified_time_comes_from_the_stores_clock(files: Files, monkeypatch: pytest.MonkeyPatch):
    before = time.time_ns() // 1_000_000
    monkeypatch.setattr(time, "time", lambda: 0.0)
    monkeypatch.setattr(time, "time_ns", lambda: 0)
    files.put("a", b"x")
    monkeypatch.undo()
    # The kernel stamps files with the time of its last tick, up to 10 ms ago. S3 knows whole seconds.
    coarse = 20 if isinstance(files, LocalFiles) else 1_000
    assert before - coarse <= files.modified_ms("a") <= time.time_ns() // 1_000_000


# -- list and delete ------------------------------------------------------------------------------------


def test_list_names_what_is_directly_in_a_folder(files: Files, tmp_path: Path):
    names = ["top", "box/c", "box/a", "box/b", "box/sub/d", "boxes/e"]
    for name in names:
        files.put(name, b"", durable=False)
    if isinstance(files, LocalFiles):
        (tmp_path / "root" / "box" / ".hidden").touch()
    else:
        obstore.put(files._store, "box/.hidden", b"")
    assert files.list("box") == files.list("box/") == ["box/a", "box/b", "box/c"]
    assert files.list("box/sub") == ["box/sub/d"]
    assert files.list("") == ["top"]
    assert files.list("none") == []
    assert len(files.list("box", limit=2)) == 2
    assert set(files.list("box", limit=2)) < set(files.list("box"))
    assert files.list("box", limit=0) == []
    assert files.list("box", limit=10) == files.list("box")


def test_store_is_empty_before_the_first_object(files: Files, tmp_path: Path):
    assert files.list("") == files.list("box") == []
    files.delete(["box/a"])
    files.delete_folder("box")
    assert files.size("box/a") is None
    assert not (tmp_path / "root").exists()


def test_deleting_a_missing_object_does_nothing(files: Files):
    for name in "abc":
        files.put(f"box/{name}", b"", durable=False)
    files.delete(f"box/{name}" for name in "axc")
    files.delete(["box/a", "box/b/c", "none/a"])
    files.delete([])
    assert files.list("box") == ["box/b"]


def test_a_folder_is_deleted_and_can_be_used_again(files: Files, tmp_path: Path):
    files.put("box/one/a", b"")
    files.put("box/one/b", b"")
    files.put("box/two/a", b"")
    files.delete_folder("box/one")
    files.delete_folder("box/one/")
    assert not (tmp_path / "root/box/one").exists()
    assert list_everything(files) == ["box/two/a"]
    files.put("box/one/a", b"again")
    assert files.get("box/one/a") == b"again"


# -- streams --------------------------------------------------------------------------------------------


def test_an_output_appears_on_a_clean_exit(files: Files, tmp_path: Path):
    table = pa.table({"row": range(100_000)})
    with files.open_output("data/a.parquet") as sink:
        with pq.ParquetWriter(sink, table.schema) as writer:
            writer.write_table(table)
        assert files.list("data") == []
        assert files.size("data/a.parquet") is None
    assert list_everything(files) == ["data/a.parquet"]
    with files.open_input("data/a.parquet") as source:
        assert source.size() == files.size("data/a.parquet")
        assert pq.read_table(source, columns=["row"]).equals(table)


@pytest.mark.parametrize("pieces", [1, 20])
def test_an_output_that_fails_leaves_nothing(files: Files, tmp_path: Path, pieces: int):

    def interrupt_write() -> None:
        with files.open_output("data/a") as sink:
            for _ in range(pieces):
                sink.write(b"x" * 1_000_000)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt_write()
    assert list_everything(files) == []


# -- names ----------------------------------------------------------------------------------------------


def test_threads_that_write_first_make_the_root_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files, make = LocalFiles(str(tmp_path / "root")), os.mkdir
    missing = list[str]()

    def lose_the_race(path: str) -> None:
        if not missing:
            missing.append(path)
            files.put("other/object", b"")
            raise FileNotFoundError(errno.ENOENT, "the root was not there yet", path)
        make(path)

    monkeypatch.setattr(os, "mkdir", lose_the_race)
    files.put("folder/object", b"late")
    assert files.get("folder/object") == b"late"


@pytest.mark.parametrize("name", ["", "/etc/passwd", "..", "a/../../x", "a/..", ".", "a//b", "a/", "a/.b", "a\0b"])
def test_names_that_leave_the_root_are_refused(files: Files, tmp_path: Path, name: str):
    (tmp_path / "x").write_bytes(b"outside")
    calls = [
        lambda: files.put(name, b""),
        lambda: files.get(name),
        lambda: files.size(name),
        lambda: files.modified_ms(name),
        lambda: files.delete([name]),
        lambda: files.open_output(name).__enter__(),
        lambda: files.open_input(name),
        lambda: files.uri(name),
    ]
    if name not in ("", "a/"):
        calls.append(lambda: files.list(name))
    if name != "a/":
        calls.append(lambda: files.delete_folder(name))
    for call in calls:
        with pytest.raises(ValueError, match="name of an object: found"):
            call()
    assert (tmp_path / "x").read_bytes() == b"outside"


# -- faults ---------------------------------------------------------------------------------------------


@contextmanager
def limit_file_size(size: int) -> Iterator[None]:
    """Let the kernel write files of up to `size` bytes. A larger write fails in the middle."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, ignored)


@pytest.mark.parametrize("durable", [True, False])
def test_put_that_runs_out_of_space_leaves_no_object(disk: Files, tmp_path: Path, durable: bool):
    disk.put("box/before", b"x")
    with limit_file_size(5_000):
        with pytest.raises(OSError, match="File too large"):
            disk.put("box/a", b"x" * 10_000, durable=durable)
        with pytest.raises(OSError, match="File too large"), disk.open_output("box/b") as sink:
            sink.write(b"x" * 1_000_000)
        assert disk.list("box") == ["box/before"]
    assert list_everything(disk) == ["box/before"]
    disk.put("box/a", b"x" * 10_000)


@pytest.mark.parametrize("named_temporaries", [False, True])
def test_visible_object_is_never_taken_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_temporaries: bool):
    """A reader may have seen it before its folder failed to become durable."""
    files = LocalFiles(str(tmp_path / "root"), named_temporaries=named_temporaries)
    files.put("box/before", b"")

    def fail(_: int) -> None:
        if files.size("box/a") is not None:
            raise OSError(5, "Input/output error")

    monkeypatch.setattr(os, "fsync", fail)
    with pytest.raises(MaybeThere, match="Input/output error"):
        files.put("box/a", b"x")
    assert list_everything(files) == ["box/a", "box/before"]


def make_link_to_itself(path: Path) -> None:
    path.symlink_to(path)


NO_OBJECTS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a pipe": (os.mkfifo, "not a regular file"),
    "a folder": (Path.mkdir, "not a regular file"),
    "a link to itself": (make_link_to_itself, "symbolic links"),
    "a link": (lambda path: path.symlink_to("/etc/hostname"), "symbolic links"),
    "a socket": (lambda path: socket.socket(socket.AF_UNIX).bind(os.path.relpath(path)), "No such device"),
    "a large file": (
        lambda path: os.truncate(os.open(path, os.O_CREAT | os.O_WRONLY), 20 << 30),
        "more than 100 bytes",
    ),
}


@pytest.mark.parametrize("kind", NO_OBJECTS)
def test_pipe_folder_or_link_is_refused_without_waiting(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    (tmp_path / "box").mkdir()
    monkeypatch.chdir(tmp_path)
    make, reason = NO_OBJECTS[kind]
    make(tmp_path / "box/it")
    files = LocalFiles(str(tmp_path))
    files.put("box/other", b"x")
    opened = len(os.listdir("/proc/self/fd"))
    with pytest.raises(OSError, match=reason):
        files.get("box/it", 100)
    assert len(os.listdir("/proc/self/fd")) <= opened
    assert "box/other" in files.list("box")
    assert files.folders("box") == (["box/it"] if kind == "a folder" else [])


def test_an_object_that_cannot_be_deleted_does_not_keep_the_others(disk: Files, tmp_path: Path):
    disk.put("box/a", b"")
    disk.put("box/z", b"")
    (tmp_path / "root/box/folder").mkdir()
    with pytest.raises(OSError, match=r"box/folder|Is a directory|regular file"):
        disk.delete(["box/a", "box/folder", "box/z"])
    assert list_everything(disk) == []


def test_folders_lists_only_folders(files: Files):
    files.put("box/a", b"")
    files.put("box/one/a", b"")
    files.put("box/two/a", b"")
    assert files.folders("box") == ["box/one", "box/two"]
    assert files.folders("box/one") == files.folders("nothing") == []
    assert len(files.folders("box", 1)) == 1


@pytest.mark.parametrize("named_temporaries", [False, True])
def test_durable_put_syncs_the_file_before_it_appears_and_then_its_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named_temporaries: bool
):
    files = LocalFiles(str(tmp_path / "root"), named_temporaries=named_temporaries)
    files.put("box/before", b"")
    synced: list[tuple[str, list[str]]] = []
    fsync = os.fsync

    def record_sync(descriptor: int) -> None:
        synced.append((os.readlink(f"/proc/self/fd/{descriptor}"), files.list("box")))
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    files.put("box/a", b"x", durable=True)
    (file, names_at_file_sync), (folder, names_at_folder_sync) = synced
    assert Path(file).parent == Path(folder) == tmp_path / "root/box"
    assert names_at_file_sync == ["box/before"]
    assert names_at_folder_sync == ["box/a", "box/before"]
    synced.clear()
    if not named_temporaries:
        files.put("box/b", b"x", durable=False)
        assert synced == []


def test_durable_put_syncs_every_folder_that_it_makes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    synced: list[Path] = []
    fsync = os.fsync

    def record_sync(descriptor: int) -> None:
        path = Path(os.readlink(f"/proc/self/fd/{descriptor}"))
        synced.extend([path] if path.is_dir() else [])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", record_sync)
    files = LocalFiles(str(tmp_path / "root"))
    files.put("box/deep/a", b"x")
    assert sorted(synced) == [tmp_path, tmp_path / "root", tmp_path / "root/box", tmp_path / "root/box/deep"]
    synced.clear()
    files.put("box/deep/b", b"x")
    assert synced == [tmp_path / "root/box/deep"]


@pytest.mark.parametrize("code", [errno.ENOENT, errno.EPERM])
def test_a_folder_that_goes_while_a_file_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
):
    files = LocalFiles(str(tmp_path / "root"))
    (tmp_path / "root/box").mkdir(parents=True)
    real = os.open

    def as_it_goes(path: str, flags: int, *rest: int) -> int:
        monkeypatch.setattr(os, "open", real)
        os.rmdir(path)
        raise OSError(code, os.strerror(code), path)

    monkeypatch.setattr(os, "open", as_it_goes)
    files.put("box/a", b"x")
    assert files.get("box/a") == b"x"


def test_file_gets_a_hidden_name_if_the_disk_has_no_unnamed_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    files = LocalFiles(str(tmp_path / "root"))
    real = os.open

    def as_on_nfs(path: str, flags: int, *rest: int) -> int:
        if flags & os.O_TMPFILE == os.O_TMPFILE:
            raise OSError(95, "Operation not supported", path)
        return real(path, flags, *rest)

    monkeypatch.setattr(os, "open", as_on_nfs)
    files.put("box/a", b"x")
    assert files.get("box/a") == b"x"
    assert list_everything(files) == ["box/a"]


# -- several processes ----------------------------------------------------------------------------------


def test_files_survive_pickling(files: Files):
    files.put("a", b"x")
    assert pickle.loads(pickle.dumps(files)).get("a") == b"x"
