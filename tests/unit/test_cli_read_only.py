"""A namespace that this user may read but not write, at the command line."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import lakemq.jobs.serve  # after the change of user it could not be imported any more
from lakemq.jobs.cli import app

pytestmark = pytest.mark.slow

assert lakemq

NOBODY = 65534


def run(path: Path, *arguments: str, stdin: bytes = b"") -> Result:
    return CliRunner().invoke(app, ["--path", str(path), *arguments], input=stdin)


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A namespace with a topic and a message; this process may not write there, whoever runs it."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "mq")
        for command in (["init"], ["topics", "create", "t"], ["publish", "--topic", "t"], ["step"], ["fetch", "t"]):
            assert run(path, *command, stdin=b"1\n").exit_code == 0
        for parent, _, _ in os.walk(folder):
            os.chmod(parent, 0o555)
        before = os.geteuid()
        if before == 0:  # root may write anywhere
            os.seteuid(NOBODY)
        try:
            yield path
        finally:
            os.seteuid(before)
            for parent, _, _ in os.walk(folder):
                os.chmod(parent, 0o755)


def test_a_read_only_namespace_can_be_read_but_not_written(read_only: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert run(read_only, "topics", "list", "--output", "json").stdout.startswith('{"topic":"t",')
    assert run(read_only, "fetch", "t", "--output", "json").stdout.endswith('"value":"1","headers":[]}\n')
    refused = run(read_only.with_name("new"), "init")
    assert (refused.exit_code, refused.stdout) == (3, "")
    assert refused.stderr.startswith("NOT_A_NAMESPACE: ")
    for command in (["topics", "create", "new"], ["publish", "--topic", "t"], ["step", "--until-idle"], ["serve"]):
        result = run(read_only, *command, stdin=b"1\n")
        (line,) = result.stderr.splitlines()
        assert (result.exit_code, result.stdout) == (1, ""), command
        assert line.startswith("KAFKA_STORAGE_ERROR: Permission denied: ")
    # Rust would write its panics there
    assert capfd.readouterr().err == ""
