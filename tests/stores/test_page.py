"""The programs of docs/object-stores.md run as they stand, with the addresses and keys of servers that run here."""

import os
import re
import subprocess
import sys
import uuid
from pathlib import Path

import gcs_server
import pytest
from azurite import KEY, VARIABLE, AzureServer
from gcs_server import GcsServer
from s3_server import ACCESS_KEY, SECRET_KEY, S3Server

from lakemq.jobs.jars import S3A_JARS

PAGE = Path(__file__).parents[2] / "docs" / "object-stores.md"
TIMEOUT_S = 400


def read_blocks(language: str = "python") -> list[str]:
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for written, text in blocks if written == language]


def find_block(word: str) -> str:
    (block,) = [block for block in read_blocks() if word in block]
    return block


def at_s3(block: str, s3: S3Server, path: str) -> str:
    """Return the block with the address and the keys of the server."""
    changes = {
        '"s3://bucket/queue"': repr(path),
        '"AWS_ACCESS_KEY_ID": "..."': f'"AWS_ACCESS_KEY_ID": "{ACCESS_KEY}"',
        '"AWS_SECRET_ACCESS_KEY": "..."': f'"AWS_SECRET_ACCESS_KEY": "{SECRET_KEY}"',
        "http://127.0.0.1:7070": s3.url,
    }
    for written, real in changes.items():
        assert written in block
        block = block.replace(written, real)
    return block


def run_program(text: str, folder: Path) -> str:
    command = [sys.executable, "-c", text]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=TIMEOUT_S, check=False)
    assert done.returncode == 0, done.stderr[-5_000:]
    return done.stdout


def test_messages_come_back_from_s3_in_python_and_in_spark(s3: S3Server, tmp_path: Path) -> None:
    S3A_JARS.resolve()
    program = at_s3(find_block("mq.topics.create"), s3, s3.path(f"{uuid.uuid4().hex}/mq")) + find_block("to_spark")
    assert run_program(program, tmp_path) == "2 messages\n2 messages in Spark\n"


@pytest.mark.skipif(VARIABLE not in os.environ, reason="runs on Azurite, with make test-stores")
def test_messages_come_back_from_azure(request: pytest.FixtureRequest, tmp_path: Path) -> None:
    azure: AzureServer = request.getfixturevalue("azure")
    first, options = find_block("mq.topics.create"), find_block("AZURE_STORAGE_ENDPOINT")
    changes = {
        '"az://container/queue"': repr(azure.path(f"{uuid.uuid4().hex}/mq")),
        '"AZURE_STORAGE_ACCOUNT_KEY": "..."': f'"AZURE_STORAGE_ACCOUNT_KEY": "{KEY}"',
        "http://127.0.0.1:10000": azure.url,
    }
    for written, real in changes.items():
        assert written in options
        options = options.replace(written, real)
    program = "import lakemq\nimport pyarrow as pa\n" + options + first[first.index("config =") :]
    assert run_program(program, tmp_path) == "2 messages\n"


@pytest.mark.skipif(gcs_server.VARIABLE not in os.environ, reason="runs on fake-gcs-server, with make test-stores")
def test_messages_come_back_from_google_cloud_storage(gcs: GcsServer, tmp_path: Path) -> None:
    (account,) = read_blocks("json")
    assert "http://127.0.0.1:4443" in account
    (tmp_path / "account.json").write_text(account.replace("http://127.0.0.1:4443", gcs.url))
    first, options = find_block("mq.topics.create"), find_block("GOOGLE_SERVICE_ACCOUNT")
    assert '"gs://bucket/queue"' in options
    options = options.replace('"gs://bucket/queue"', repr(gcs.path(f"{uuid.uuid4().hex}/mq")))
    options = options.replace('"account.json"}', '"account.json", "allow_http": "true"}')
    program = "import lakemq\nimport pyarrow as pa\n" + options + first[first.index("config =") :]
    assert run_program(program, tmp_path) == "2 messages\n"


def test_the_command_takes_secrets_from_the_environment(s3: S3Server, tmp_path: Path) -> None:
    path = s3.path(f"{uuid.uuid4().hex}/mq")
    run_program(at_s3(find_block("mq.topics.create"), s3, path), tmp_path)
    (command,) = [block.splitlines()[-1] for block in read_blocks("") if "export AWS_SECRET_ACCESS_KEY" in block]
    command = command.replace("s3://bucket/queue", path).replace("eu-central-1", "us-east-1")
    command = command.replace(" doctor", " --storage-option AWS_ENDPOINT_URL --storage-option AWS_ALLOW_HTTP doctor")
    script = f'lakemq() {{ "{sys.executable}" -m lakemq.jobs.cli "$@"; }}\n{command}'
    done = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, **s3.options},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert "sequencer" in done.stdout, done.stderr
    assert SECRET_KEY not in done.stdout + done.stderr
