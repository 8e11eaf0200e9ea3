"""Opening a store by its path and options: which kind it is, and what is refused."""

from __future__ import annotations

import subprocess
import sys
import traceback
from pathlib import Path

import pytest

from lakemq.tables.storage.object_stores.files import LocalFiles, ObjectFiles, open_files


@pytest.mark.parametrize("prefix", ["", "file:", "file://"])
def test_a_path_opens_the_local_disk(tmp_path: Path, prefix: str):
    files = open_files(f"{prefix}{tmp_path}/ro ot", {"AWS_REGION": "unused"})
    assert isinstance(files, LocalFiles)
    assert files.root == f"{tmp_path}/ro ot"
    assert files.uri("a/b") == f"file://{tmp_path}/ro ot/a/b"
    assert open_files(files.uri("a/b")).root == f"{tmp_path}/ro ot/a/b"


def test_a_relative_path_is_fixed_when_opened(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(tmp_path)
    files = open_files("data/mq")
    monkeypatch.chdir("/")
    assert files.root == f"{tmp_path}/data/mq"


@pytest.mark.parametrize(
    "root", ["", "s3:/a/b", "file:relative", "file://host/a", "s3://", *(f"/a{c}b" for c in "%#?*[{|^\\\n")]
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


@pytest.mark.slow
def test_importing_costs_neither_pyarrow_fs_nor_more():
    script = "import sys, lakemq.tables.storage.object_stores.files\n"
    script += "print([m in sys.modules for m in ('pyarrow.fs', 'deltalake', 'obstore')])"
    completed = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert completed.stdout.strip() == "[False, False, False]"
