"""Object stores: tables and clients on S3, puts whose answer is lost, and credentials that stay hidden."""

import io
import itertools
import logging
import subprocess
import sys
import time
import traceback
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote

import pytest
from object_servers import ObjectServer
from obstore.store import LocalStore, MemoryStore
from s3_server import ACCESS_KEY, BUCKET, SECRET_KEY, S3Server
from store_proxy import Fault, StoreProxy
from unit.notes_table import NOTES, NoteRow, make_notes

import lakemq
from lakemq.errors import NamespaceError, StorageError
from lakemq.jobs import entry
from lakemq.tables.specs.spec import TableSpec
from lakemq.tables.storage.delta.store import NotATable, Store
from lakemq.tables.storage.object_stores import object_store
from lakemq.tables.storage.object_stores.files import ObjectFiles, open_files
from lakemq.tables.storage.object_stores.objects import MaybeThere
from lakemq.tables.storage.object_stores.store_options import hide_secrets


@pytest.fixture
def root(object_server: ObjectServer) -> str:
    return object_server.path(uuid.uuid4().hex)


@pytest.fixture
def files(object_server: ObjectServer, root: str) -> ObjectFiles:
    opened = open_files(root, object_server.options)
    assert isinstance(opened, ObjectFiles)
    return opened


@pytest.fixture
def store(object_server: ObjectServer, files: ObjectFiles) -> Store:
    store = Store(files, object_server.options)
    store.create(NOTES)
    return store


# -- tables -------------------------------------------------------------------------------------------------


@pytest.mark.slow
def test_table_on_an_object_store_is_written_read_and_cleaned(store: Store) -> None:
    handle = store.open(NOTES)
    handle.append_at(0, make_notes(1, 2), last_step=2)
    handle.append_at(1, make_notes(3))
    assert sorted(handle.read(step=(2, None))["step"].to_pylist()) == [2, 3]
    assert store.open(NOTES).dataset().count_rows() == 3
    handle.checkpoint()
    assert handle.log.expire(0, store.files.time_ms() + 60_000) == 2
    assert store.open(NOTES).last_step() == 2
    with pytest.raises(NotATable):
        store.open(TableSpec(name="other", row=NoteRow, shape="log", keys=("step",), comment="", log_retention_ms=0))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 20 << 20])
def test_large_objects_are_written_in_parts_and_read_by_ranges(files: ObjectFiles, size: int) -> None:
    data = bytes(range(251)) * (size // 251) + bytes(size % 251)
    with files.open_output("large") as sink:
        sink.write(data)
    with files.open_input("large") as source:
        assert source.size() == size
        assert source.read_at(100, max(0, size - 50)) == data[-50:]
        middle = source.read_at(10 << 20, size // 3)
        assert middle == data[size // 3 : size // 3 + (10 << 20)]
        source.seek(0)
        assert source.read() == data
    # a server may refuse before it has read the data, and close the connection: the client sees only that
    with pytest.raises((FileExistsError, MaybeThere)), files.open_output("large") as sink:
        sink.write(bytes(size + 1))
    assert files.get("large") == data


@pytest.mark.parametrize("pieces", [1, 20])
@pytest.mark.parametrize("kind", ["memory", "folder", "store"])
def test_an_upload_that_fails_leaves_neither_object_nor_parts(
    object_server: ObjectServer, files: ObjectFiles, tmp_path: Path, kind: str, pieces: int
) -> None:
    if kind == "memory":
        files = ObjectFiles(MemoryStore(), "memory://")
    elif kind == "folder":
        files = ObjectFiles(LocalStore(str(tmp_path)), str(tmp_path))

    def interrupt_write() -> None:
        with files.open_output("large") as sink:
            for _ in range(pieces):
                sink.write(bytes(1_000_000))
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupt_write()
    assert files.size("large") is None
    assert list(tmp_path.iterdir()) == []
    if isinstance(object_server, S3Server):
        assert list_unfinished_uploads(object_server) == []
    buffer = bytearray(1_000_000)
    with files.open_output("large") as sink:
        for number in range(pieces):
            buffer[:] = bytes([number]) * len(buffer)  # what was written before stays as it was
            sink.write(buffer)
    assert files.get("large") == b"".join(bytes([number]) * len(buffer) for number in range(pieces))


def list_unfinished_uploads(server: S3Server) -> list[object]:
    import boto3

    keys = {"aws_access_key_id": ACCESS_KEY, "aws_secret_access_key": SECRET_KEY}
    client = boto3.client("s3", endpoint_url=server.url, region_name="us-east-1", **keys)
    return list(client.list_multipart_uploads(Bucket=BUCKET).get("Uploads", []))


def test_an_upload_that_the_store_refuses_raises_in_the_writer(s3: S3Server) -> None:
    files = open_files("s3://no-such-bucket/root", s3.options)
    pieces = itertools.count()

    def write() -> None:
        with files.open_output("large") as sink:
            while next(pieces) < 100:
                sink.write(bytes(1_000_000))

    with pytest.raises(OSError, match="no-such-bucket"):
        write()
    assert next(pieces) < 100


@pytest.mark.slow
def test_a_footer_and_its_columns_take_few_requests(object_server: ObjectServer, root: str) -> None:
    with StoreProxy(object_server.url) as proxy:
        files = open_files(root, object_server.at(proxy.url).options)
        with files.open_output("large") as sink:
            sink.write(bytes(6 << 20))
        requests_before = proxy.request_count
        with files.open_input("large") as source:
            for start in (6 << 20) - 8, (6 << 20) - 70_000, 0, 1_000, 500_000:
                source.read_at(8, start)
        assert proxy.request_count - requests_before == 3


def test_abandoned_objects_of_time_queries_are_removed(files: ObjectFiles) -> None:
    names = [object_store.make_time_name(), "time-table"]
    for name in names:
        files.put(name, b".")
    now_ms = files.time_ms()
    object_store.remove_abandoned_times(files, now_ms)
    assert files.list("") == sorted(names)
    object_store.remove_abandoned_times(files, now_ms + object_store.ABANDONED_AFTER_MS + 60_000)
    assert files.list("") == ["time-table"]


# -- answers that are lost ----------------------------------------------------------------------------------


@contextmanager
def faulty(object_server: ObjectServer, root: str, *faults: Fault) -> Iterator[tuple[ObjectFiles, StoreProxy]]:
    """Yield files whose first puts meet these faults."""
    pending = list(faults)

    def choose(method: str, _: str) -> Fault:
        return pending.pop(0) if method == "PUT" and pending else None

    with StoreProxy(object_server.url, choose) as proxy:
        opened = open_files(root, object_server.at(proxy.url).options)
        assert isinstance(opened, ObjectFiles)
        yield opened, proxy


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["cut before", "cut after"])
def test_a_put_whose_answer_is_lost_succeeds_or_says_that_it_does_not_know(
    object_server: ObjectServer, root: str, fault: Fault
) -> None:
    with faulty(object_server, root, fault, fault) as (files, proxy):
        try:
            files.put("name", b"x")
        except MaybeThere:
            pass
        else:
            assert files.get("name") == b"x"
        assert proxy.faults
        if files.size("name") is None:
            assert fault == "cut before"
        else:
            with pytest.raises(FileExistsError):
                files.put("name", b"x")


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["cut before", "cut after"])
def test_a_put_that_is_forbidden_after_a_lost_answer_may_have_landed(
    object_server: ObjectServer, root: str, lost: Fault
) -> None:
    """Credentials expire in the middle. A caller that heard of a refusal would put its object again elsewhere."""
    with faulty(object_server, root, lost, "forbid") as (files, proxy):
        with pytest.raises(MaybeThere, match="403"):
            files.put("name", b"x")
        assert [kind for kind, *_ in proxy.faults] == [lost, "forbid"]
        assert files.size("name") == (1 if lost == "cut after" else None)
    # the first attempt was refused, so nothing is there
    with faulty(object_server, root, "forbid") as (files, _), pytest.raises(PermissionError):
        files.put("other", b"x")


@pytest.mark.slow
def test_a_put_whose_mark_cannot_be_read_may_have_landed(object_server: ObjectServer, root: str) -> None:
    pending: list[tuple[str, Fault]] = [("PUT", "cut after"), ("HEAD", "forbid")]

    def choose(method: str, _: str) -> Fault:
        return pending.pop(0)[1] if pending and pending[0][0] == method else None

    with StoreProxy(object_server.url, choose) as proxy:
        files = open_files(root, object_server.at(proxy.url).options)
        with pytest.raises(MaybeThere):
            files.put("name", b"x")
        assert not pending
        assert files.get("name") == b"x"


@pytest.mark.slow
@pytest.mark.extended
def test_a_small_request_that_gets_no_answer_ends_within_twenty_seconds(object_server: ObjectServer, root: str) -> None:
    with StoreProxy(object_server.url, lambda *_: "hang") as proxy:
        files = open_files(root, object_server.at(proxy.url).options)
        calls: list[Callable[[], object]] = [
            lambda: files.get("name"),
            lambda: files.get_identified("name"),
            lambda: files.open_input("name"),
            lambda: files.size("name"),
            lambda: files.list("folder"),
            lambda: files.put("name", b"x"),
            lambda: files.delete(["name"]),
        ]

        def measure(call: Callable[[], object]) -> float:
            began_s = time.monotonic()
            with pytest.raises(OSError, match="HTTP error"):
                call()
            return time.monotonic() - began_s

        with ThreadPoolExecutor(len(calls)) as threads:
            durations_s = list(threads.map(measure, calls))
    assert max(durations_s) < 20, durations_s


@pytest.mark.slow
@pytest.mark.extended
def test_a_store_that_gives_no_answer_is_not_taken_for_a_wrong_path(object_server: ObjectServer, root: str) -> None:
    with StoreProxy(object_server.url, lambda *_: "cut before") as proxy, pytest.raises(StorageError) as raised:
        lakemq.connect(root, storage_options=object_server.at(proxy.url).options)
    assert raised.value.retriable
    assert "cannot be reached" in str(raised.value)


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["refuse", "cut before", "cut after"])
def test_a_commit_whose_answer_is_lost_is_no_conflict(
    object_server: ObjectServer, root: str, store: Store, fault: Fault
) -> None:
    """Its own entry, found in the log, is a success. Only a request that the store never saw may be unclear."""
    pending = [fault]

    def choose(method: str, path: str) -> Fault:
        is_entry = method == "PUT" and unquote(path).endswith(f"{1:020d}.json")
        return pending.pop() if is_entry and pending else None

    with StoreProxy(object_server.url, choose) as proxy:
        options = object_server.at(proxy.url).options
        handle = Store(open_files(root, options), options).open(NOTES)
        try:
            handle.append_at(0, make_notes(1), last_step=1)
        except MaybeThere:
            assert fault == "cut before"
            return
        assert [kind for kind, *_ in proxy.faults] == [fault]
        handle.append_at(1, make_notes(2), last_step=2)
    fresh = store.open(NOTES)
    assert (fresh.version, fresh.last_step()) == (2, 2)
    assert sorted(fresh.read()["step"].to_pylist()) == [1, 2]


@pytest.mark.slow
def test_a_commit_takes_three_requests(object_server: ObjectServer, root: str, store: Store) -> None:
    log = io.StringIO()
    with StoreProxy(object_server.url, log=log) as proxy:
        options = object_server.at(proxy.url).options
        handle = Store(open_files(root, options), options).open(NOTES)
        handle.append_at(0, make_notes(0), last_step=1)
        requests_before = proxy.request_count
        for version in (1, 2, 3):
            assert handle.last_step() == version
            handle.append_at(version, make_notes(version), last_step=version + 1)
        assert proxy.request_count - requests_before == 9
    lines = unquote(log.getvalue()).splitlines()  # clients of Google Cloud Storage quote even dots
    requests = [line.split()[0] + " " + line.rsplit("/", 1)[-1] for line in lines[-3:]]
    assert requests[0].startswith("PUT part-")
    assert requests[1:] == [f"PUT {4:020d}.json", f"HEAD {3:020d}.json"]
    assert store.open(NOTES).read().num_rows == 4


@pytest.mark.slow
def test_repeated_put_succeeds_only_if_the_object_is_its_own(object_server: ObjectServer, root: str) -> None:
    with faulty(object_server, root, "refuse") as (files, _):
        files.put("mine", b"x")
    other = open_files(root, object_server.options)
    with faulty(object_server, root, "refuse") as (files, _):
        other.put("theirs", b"x")
        with pytest.raises(FileExistsError):
            files.put("theirs", b"x")


# -- credentials --------------------------------------------------------------------------------------------


ECHO = f"""
import json, sys, threading
from http.server import BaseHTTPRequestHandler, HTTPServer

class Echo(BaseHTTPRequestHandler):
    def do(self):
        text = json.dumps({{"path": self.path, **self.headers, "configured": {SECRET_KEY!r}}}).encode()
        self.send_response(403)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    do_GET = do_HEAD = do_PUT = do_POST = do_DELETE = do
    log_message = lambda *_: None

server = HTTPServer(("127.0.0.1", 0), Echo)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""
"""A program that runs a store. It refuses every request, and its answer shows the request and a text of its own."""


@pytest.fixture
def echo() -> Iterator[dict[str, str]]:
    """Yield storage options for a store that shows the requests it got."""
    with subprocess.Popen(
        [sys.executable, "-c", ECHO], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        port = int(process.stdout.readline())
        options = S3Server(f"http://127.0.0.1:{port}").options
        yield {**options, "AWS_SESSION_TOKEN": "a-token/that+stays=hidden"}
        process.stdin.close()


def test_errors_and_logs_never_show_credentials(echo: dict[str, str], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    files = open_files(f"s3://{BUCKET}/mq", echo)
    store = Store(files, echo)
    calls = [
        lambda: files.put("a", b"x"),
        lambda: files.get("a"),
        lambda: files.size("a"),
        lambda: files.list(""),
        lambda: files.delete(["a"]),
        lambda: files.open_input("a"),
        lambda: store.create(NOTES),
        lambda: store.open(NOTES),
        lambda: store.open_version(NOTES, 3),
        lambda: lakemq.connect(f"s3://{BUCKET}/mq", storage_options=echo),
    ]
    texts = [repr(files)]
    for call in calls:
        with pytest.raises(Exception, match=r"\w") as failed:
            call()
        texts.append("".join(traceback.format_exception(failed.value)))
    texts.append(caplog.text)
    for secret in (SECRET_KEY, echo["AWS_SESSION_TOKEN"]):
        assert not [text for text in texts if secret in text]
    assert sum("403" in text for text in texts) > 4, "the answer itself is shown"


def test_secrets_and_signatures_are_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"AWS_SECRET_ACCESS_KEY": "ab/cd+ef", "AWS_REGION": "us-east-1", "sse_bucket_key_enabled": "true"}
    text = hide_secrets("us-east-1 ab/cd+ef ab%2Fcd%2Bef true ?sv=1&sig=Zm9v%3D&x http://me:pw@host:9/a@b", options)
    assert text == "us-east-1 *** *** true ?sv=1&sig=***&x http://***@host:9/a@b"
    monkeypatch.setenv("AWS_SESSION_TOKEN", "session+token")
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    assert hide_secrets("session+token session%2Btoken eu-central-1", {}) == "*** *** eu-central-1"


def test_credentials_in_a_path_are_refused_and_not_shown() -> None:
    paths = "s3://me:password@bucket/x", "/data/mq?sig=password", "az://container/x?sv=1&sig=password", "s3://me@b/x"
    paths = (*paths, "s3://me:a/password@bucket/x")
    for path in paths:
        with pytest.raises(NamespaceError) as refused:
            lakemq.connect(path)
        assert "password" not in f"{refused.value} {refused.value.__cause__}", path


def test_time_of_a_store_raises_if_its_object_is_missing(files: ObjectFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    """A term that began at time 0 would release no delayed message."""
    assert abs(files.time_ms() - time.time() * 1000) < 60_000
    monkeypatch.setattr(files, "modified_ms", lambda _: None)
    with pytest.raises(OSError, match="just put is not there"):
        files.time_ms()


def test_a_value_comes_from_the_environment_and_not_from_the_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    assert entry.storage_options(["AWS_SECRET_ACCESS_KEY", "AWS_REGION=x"]) == {
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "x",
    }
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(lakemq.errors.InvalidConfig, match="KEY alone"):
        entry.storage_options(["AWS_SECRET_ACCESS_KEY"])
