"""A namespace that users share: with any umask, each reads, writes and serves the files of the others."""

import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import lakemq
from lakemq.engine.namespace.namespace import open_namespace
from lakemq.errors import NamespaceError
from lakemq.jobs.cli import app
from lakemq.tables.storage.object_stores import local_files

pytestmark = [pytest.mark.slow, pytest.mark.extended]

GROUP, ANN, BOB, EVE = 64_001, 64_002, 64_003, 64_004


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that ANN owns for GROUP, in a place that all users can reach. They cannot reach pytest's folders."""
    place = Path(tempfile.mkdtemp(prefix="lakemq-sharing-"))
    place.chmod(0o711)
    root = place / "mq"
    root.mkdir()
    root.chmod(0o750)
    if os.geteuid() == 0:
        os.chown(root, ANN, GROUP)
    yield root
    shutil.rmtree(place)


def read_modes(root: Path) -> dict[str, set[str]]:
    """Return the modes of folders and of files."""
    modes_by_kind: dict[str, set[str]] = {"folders": set(), "files": set()}
    for path in [root, *root.rglob("*")]:
        modes_by_kind["folders" if path.is_dir() else "files"].add(oct(stat.S_IMODE(path.stat().st_mode)))
    return modes_by_kind


WORK = """
import importlib, json, os, sys, tempfile, traceback
from contextlib import suppress
from typer.testing import CliRunner
import lakemq
from lakemq.jobs.cli import app

def make(path, **options):
    lakemq.connect(path, create=True, **options)

def write(path):
    with lakemq.connect(path, config={"request.timeout.ms": 20000}) as mq, mq.serving():
        mq.topics.create("t", exist_ok=True)
        with mq.producer() as producer:
            producer.send("t", str(os.getuid()))
        print(*(message.value.decode() for message in mq.fetch("t")))

def command(path):
    words = ["--path", str(path), "publish", "--topic", "t", "--format", "lines", "--output", "json"]
    result = CliRunner().invoke(app, words, input=str(os.getuid()).encode())
    print(result.exit_code, result.output.strip())

def act(user, group, umask, what, path):
    os.setgroups([group]), os.setgid(user), os.setuid(user), os.umask(int(umask, 8))
    eval(what)(path) if what != "shared" else make(path, shared_with_group=True)

def list_modules():
    scratch = tempfile.mkdtemp()
    make(scratch), write(scratch), command(scratch)
    print("\\n" + json.dumps(list(sys.modules)))

def run_in_fork(function):
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        if not (child := os.fork()):
            os.dup2(out.fileno(), 1), os.dup2(errors.fileno(), 2)
            code = 1
            try:
                function()
                code = 0
            except BaseException:
                traceback.print_exc()
            sys.stdout.flush(), sys.stderr.flush(), os._exit(code)
        code = os.waitpid(child, 0)[1]
        return code, *(os.pread(file.fileno(), 1 << 20, 0).decode() for file in (out, errors))

# all is imported before a fork becomes another user, who may not reach this interpreter's files
for name in json.loads(run_in_fork(list_modules)[1].splitlines()[-1]):
    with suppress(Exception):
        importlib.import_module(name)
for line in sys.stdin:
    print(json.dumps(run_in_fork(lambda: act(*json.loads(line)))), flush=True)
"""


@pytest.fixture(scope="module")
def workers() -> Iterator[subprocess.Popen[str]]:
    """A process that runs functions of WORK, each in a fork: to import all takes much longer than what they do."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    command = [sys.executable, "-c", WORK]
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        yield process
        assert process.stdin
        process.stdin.close()


RunAsUser = Callable[..., str]


@pytest.fixture
def run_as_user(workers: subprocess.Popen[str]) -> RunAsUser:
    """Run a function of WORK as that user, and return its output. An AssertionError shows its stderr."""

    def run(user: int, action: str, root: Path, group: int = GROUP, umask: str = "077") -> str:
        assert workers.stdin
        assert workers.stdout
        print(json.dumps([user, group, umask, action, str(root)]), file=workers.stdin, flush=True)
        code, output, errors = json.loads(workers.stdout.readline())
        assert code == 0, errors
        return str(output)

    return run


@pytest.mark.parametrize("others_mode", [0o0, 0o5])
def test_all_files_belong_to_the_group_under_any_umask(folder: Path, others_mode: int):
    folder.chmod(0o700 | others_mode)
    before = os.umask(0o077)
    try:
        namespace = open_namespace(str(folder), create=True, shared_with_group=True)
        namespace.mailbox.put("c", 1, b"", 0)
        namespace.mailbox.put_answer("c", 1, b"")
        with namespace.files.open_output("messages/f.parquet"):
            pass
    finally:
        os.umask(before)
    assert read_modes(folder) == {"folders": {oct(0o2770 | others_mode)}, "files": {oct(0o660 | others_mode & 0o006)}}
    assert {path.stat().st_gid for path in folder.rglob("*")} == {folder.stat().st_gid}


def test_init_shares_an_existing_namespace(folder: Path):
    before = os.umask(0o077)
    try:
        open_namespace(str(folder), create=True)
        assert "0o600" in read_modes(folder)["files"]
        result = CliRunner().invoke(app, ["--path", str(folder), "init", "--shared-with-group"])
        assert result.exit_code == 0, result.output
        open_namespace(str(folder)).mailbox.put("c", 1, b"", 0)
    finally:
        os.umask(before)
    assert read_modes(folder) == {"folders": {"0o2770"}, "files": {"0o660"}}


as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root becomes other users")


@as_root
def test_two_users_of_a_group_share_and_a_third_is_refused(run_as_user: RunAsUser, folder: Path):
    """ANN creates the namespace. ANN and BOB publish, serve and fetch in turn, each with umask 077."""
    run_as_user(ANN, "shared", folder)
    owners = [sorted(run_as_user(user, "write", folder).split()) for user in (ANN, BOB, ANN)]
    assert owners == [[str(ANN)], [str(ANN), str(BOB)], [str(ANN), str(ANN), str(BOB)]]
    with pytest.raises(AssertionError, match="NOT_A_NAMESPACE"):
        run_as_user(EVE, "write", folder, group=EVE)


@as_root
def test_the_command_publishes_where_it_may_write_no_more_than_a_publisher_must(run_as_user: RunAsUser, folder: Path):
    """The folders of the page "Who may read and write". Where no sequencer leads, the command would have to be one."""
    folder.chmod(0o755)
    with lakemq.connect(str(folder), create=True) as mq:
        for name in ("mailbox", "messages", "replies"):
            (folder / name).mkdir(exist_ok=True)
            (folder / name).chmod(0o777)
        with mq.serving():
            mq.topics.create("t", partitions=1)
            assert run_as_user(BOB, "command", folder, umask="022").startswith('0 {"topic":"t"')
        assert [message.value for message in mq.fetch("t")] == [str(BOB).encode()]
    assert run_as_user(BOB, "command", folder, umask="022").startswith("1 KAFKA_STORAGE_ERROR: Permission denied")


def test_sharing_without_access_lists_is_refused_with_another_way(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    def fail(*_: object) -> None:
        raise OSError(95, "Operation not supported")

    monkeypatch.setattr(local_files.os, "setxattr", fail)
    with pytest.raises(NamespaceError, match=r"cannot be shared .*Operation not supported.* umask 002 or 007"):
        open_namespace(str(tmp_path / "mq"), create=True, shared_with_group=True)
