"""The plain package sends, consumes and serves without any extra. Features with an extra say how to install it."""

from __future__ import annotations

import configparser
import json
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from lakemq.engine.namespace.processes.extras import EXTRAS, needs
from lakemq.errors import MissingExtra

CHECKOUT = Path(__file__).parents[2]
MODULES = tuple(sorted(module for modules in EXTRAS.values() for module in modules))

BLOCK = f"""
import sys

class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {MODULES!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Block())
"""


def run_without_extras(code: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run the code in a process that finds no module of any extra."""
    program = BLOCK + textwrap.dedent(code)
    return subprocess.run([sys.executable, "-c", program], cwd=cwd, capture_output=True, text=True, check=False)


def test_every_extra_has_its_packages_and_every_package_of_one_its_modules() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg")
    extras = setup["options.extras_require"]
    assert {*extras} - {"test", "dev", "demo", "all"} == {*EXTRAS}
    required = setup["options"]["install_requires"]
    for extra, modules in EXTRAS.items():
        packages = {re.split(r"[<>=\-]", line)[0] for line in extras[extra].splitlines() if line and line[0] != "#"}
        assert packages <= {module.partition("_")[0] for module in modules} | {"apache"}
        assert not any(re.search(rf"^{module}\b", required, re.MULTILINE) for module in modules)


def test_what_is_missing_is_said_with_the_command_that_installs_it() -> None:
    with (
        pytest.raises(MissingExtra, match=r"duckdb is not installed\. Expected pip install 'lakemq\[sql\]'\."),
        needs("sql"),
    ):
        raise ModuleNotFoundError(name="duckdb")
    with pytest.raises(ModuleNotFoundError, match="other"), needs("sql"):
        raise ModuleNotFoundError("other", name="other")


@pytest.mark.extended
@pytest.mark.slow
def test_the_plain_package_sends_consumes_and_serves(tmp_path: Path) -> None:
    completed = run_without_extras(
        """
        import pyarrow as pa
        import lakemq

        with lakemq.connect("mq", create=True) as mq, mq.serving():
            mq.topics.create("t", partitions=2)
            with mq.producer() as producer:
                producer.send("t", key="a", value="1").result()
            mq.publish("t", pa.table({"value": ["2"]}))
            with mq.transaction("id") as txn:
                txn.publish("t", pa.table({"value": ["3"]}))
            with mq.consumer("g", topics=["t"], protocol="cooperative", auto_offset_reset="earliest") as consumer:
                found = []
                while len(found) < 3:
                    batch = consumer.poll(timeout_ms=1000)
                    found += [message.value for message in batch]
                    consumer.commit(batch)
            print(sorted(found), sorted(message.value for message in mq.fetch("t")))
        from lakemq.jobs import serve, step
        from lakemq.jobs.cli import app
        from typer.testing import CliRunner
        assert step.main(["--path", "mq", "--until-idle"]) == 0
        for command in (["topics", "list"], ["groups", "lag", "g"], ["doctor", "--no-spark"]):
            done = CliRunner().invoke(app, ["--path", "mq", *command])
            assert done.exit_code == 0, (command, done.output)
        """,
        tmp_path,
    )
    assert completed.returncode == 0, completed.stderr
    assert completed.stdout.startswith("[b'1', b'2', b'3'] [b'1', b'2', b'3']\n")


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("code", "extra"),
    [
        ("import lakemq.spark", "spark"),
        ("import lakemq.jobs.reports.report", "report"),
        ("import lakemq.jobs.demo.__main__", "spark"),
        (
            "from lakemq.engine.client.predicate import Predicate; import pyarrow; Predicate('x', pyarrow.schema([]))",
            "sql",
        ),
    ],
)
def test_what_needs_an_extra_names_it(tmp_path: Path, code: str, extra: str) -> None:
    completed = run_without_extras(code, tmp_path)
    assert completed.returncode == 1
    last = completed.stderr.splitlines()[-1]
    assert last.startswith("lakemq.engine.protocol.errors.MissingExtra: MISSING_EXTRA: ")
    assert f"pip install 'lakemq[{extra}]'" in last


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("job", "arguments", "missing", "extra"),
    [
        ("microbatch", [], "py4j", "spark"),
        ("copy_topic", ["--from", "a", "--to", "b"], "py4j", "spark"),
        ("audit", [], "duckdb", "sql"),
    ],
)
def test_a_job_that_needs_an_extra_ends_with_one_line_and_its_json(
    tmp_path: Path, job: str, arguments: list[str], missing: str, extra: str
) -> None:
    completed = run_without_extras(
        f"""
        import runpy
        import lakemq
        lakemq.connect("mq", create=True).close()
        sys.argv[1:] = ["--path", "mq", *{arguments!r}]
        runpy.run_module("lakemq.jobs.{job}", run_name="__main__")
        """,
        tmp_path,
    )
    message = f"{missing} is not installed. Expected pip install 'lakemq[{extra}]'."
    assert completed.returncode == 3
    (logged,) = completed.stderr.splitlines()
    assert json.loads(logged)["message"] == f"MISSING_EXTRA: {message}"
    end = json.loads(completed.stdout)
    assert (end["job"], end["exit_code"]) == (job, 3)
    assert (end["error"], end["message"]) == ("MISSING_EXTRA", message)


@pytest.mark.extended
@pytest.mark.slow
@pytest.mark.parametrize(
    ("command", "missing", "extra"),
    [
        (["sql", "SELECT 1"], "duckdb", "sql"),
        (["spark-sql"], "pyspark", "spark"),
        (["audit"], "duckdb", "sql"),
        (["serve", "--metrics-port", "0"], "prometheus_client", "metrics"),
        (["console"], "uvicorn", "console"),
        (["serve", "--console"], "uvicorn", "console"),
    ],
)
def test_a_command_that_needs_an_extra_ends_as_with_a_bad_configuration(
    tmp_path: Path, command: list[str], missing: str, extra: str
) -> None:
    completed = run_without_extras(
        f"""
        from lakemq.jobs.cli import main
        import lakemq
        lakemq.connect("mq", create=True).close()
        main(["--path", "mq", *{command!r}])
        """,
        tmp_path,
    )
    assert (completed.returncode, completed.stdout) == (3, "")
    assert completed.stderr == f"MISSING_EXTRA: {missing} is not installed. Expected pip install 'lakemq[{extra}]'.\n"
