"""Type checkers see the package as it is installed for editing, and accept what users write: examples, pages, a list.

pyright has an environment of its own, which `make test-all` makes: it brings its own Node.js.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from unit.pages import CHECKOUT, DOCS, read_blocks

pytestmark = [pytest.mark.extended, pytest.mark.slow]

PYRIGHT = CHECKOUT / ".venv-pyright"
PAGE_NAMES = """
import lakemq
import pyarrow as pa
from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession, functions as F

mq: lakemq.Connection
producer: lakemq.Producer
spark: SparkSession
df: DataFrame
stream: DataFrame
totals: DataFrame
orders: pa.Table
checkpoint: str
PATH: str

__all__ = ["F", "PATH", "checkpoint", "df", "dp", "lakemq", "mq", "orders", "producer", "spark", "stream", "totals"]
"""
"""What some pages use without saying where it comes from."""

PAGES_WITHOUT_BEGINNING = (
    "groups-reference.md",
    "guarantees.md",
    "quality.md",
    "spark.md",
    "sql.md",
    "structured-streaming.md",
)

DELIBERATE = ("producers_page.py", "producer.send(topic, value).result()")
"""A line that a page shows because it is wrong: one of the values is a float."""

NOT_IN_STUBS = ("tutorial_page.py", 'messages = pa.table({"key": day["carrier"], "value": values})')
"""By pyarrow-stubs, a table is made of arrays or of lists, not of both."""

RIGHT = """import lakemq.aio

mq: lakemq.Connection = lakemq.connect('data/mq')
aio = lakemq.aio.AsyncConnection(mq, print)
reveal_type(mq)
reveal_type(mq.consumer('g', topics=['t']))
reveal_type(mq.consumer('g', topics={'t'}, protocol='classic', session_timeout_ms=9_000))
reveal_type(mq.consumer('g', assign=['t', ('u', 0)]))
reveal_type(mq.producer(linger_ms=0, acks='all'))
reveal_type(mq.producer('shop', on_error='fail'))
reveal_type(mq.producer().flush())
reveal_type(mq.fetch('t'))
reveal_type(next(iter(mq.consumer('g', topics=['t']))).value)
reveal_type(mq.consumer('g', topics=['t']).poll())
reveal_type(mq.topics.list()[0].topic)
reveal_type(lakemq.errors.NotLeader())
reveal_type(aio.consumer('g', topics=['t']))
reveal_type(aio.producer().send('t', 'v'))
"""

REVEALED = [
    "Connection",
    "QueueConsumer",
    "GroupConsumer",
    "AssignedConsumer",
    "Producer",
    "TransactionalProducer",
    "FlushReport",
    "FetchResult",
    "bytes | Any",
    "QueueBatch",
    "str",
    "NotLeader",
    "AsyncQueueConsumer",
    "RecordFuture",
]
"""The types in RIGHT, without their modules."""

WRONG = """lakemq.conect('data/mq')
mq.topics.create(7)
mq.consumer('g', topics='orders')
mq.consumer('g', topics=['t'], auto_offset_reset='begin')
mq.consumer('g', topics=['t'], protocol='share')
mq.consumer('g', topics=['t'], isolation='serializable')
mq.consumer('g', topics=['t'], session_timeout='9s')
mq.consumer('g', assign=['t'], assignor='range')
mq.consumer('g', topics=['t'], protocol='classic').nack(1)
mq.producer(lingerms=5)
mq.producer(acks='1')
mq.producer().commit_transaction()
mq.producer().start_ending()
mq.stream('g', topics=['t'], assign=['t'])
mq.fetch('t', isolation='committed')
next(iter(mq.fetch('t'))).value + 1
aio.consumer('g', topics='orders')
aio.consumer('g', topics=['t'], protocol='classic').nack(1)
aio.producer(lingerms=5)
aio.run(mq.schedules.create, 7)
"""

MYPY_FOR_PAGES = (
    "--allow-untyped-defs",
    "--allow-incomplete-defs",
    "--allow-untyped-calls",
    "--allow-untyped-decorators",
    "--allow-any-generics",
    "--no-warn-return-any",
    "--allow-redefinition",
    "--disable-error-code=var-annotated",
    "--disable-error-code=no-redef",
    "--ignore-missing-imports",
)
"""Functions of pages have no annotations. Pages import Airflow, or a module of the reader's; some are two programs."""

PYRIGHT_FOR_PAGES = (
    "reportMissingParameterType",
    "reportUnknownParameterType",
    "reportUnknownMemberType",
    "reportUnknownArgumentType",
    "reportUnknownVariableType",
    "reportUnknownLambdaType",
    "reportMissingTypeArgument",
    "reportUntypedFunctionDecorator",
    "reportMissingImports",
    "reportDuplicateImport",
)


@pytest.fixture(scope="module")
def examples(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("examples")
    for program in (CHECKOUT / "examples").rglob("*.py"):
        shutil.copy(program, folder)
    assert len([*folder.iterdir()]) >= 7
    return folder


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the Python blocks of each page as a program; those with a name are programs of their own."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "page_names.py").write_text(PAGE_NAMES)
    for page in ("README.md", *(path.name for path in DOCS.glob("*.md"))):
        name = page.removesuffix(".md").replace("-", "_")
        beginning = "from page_names import *\n"
        if blocks := read_blocks(page, "python"):
            begins = beginning if page in PAGES_WITHOUT_BEGINNING else ""
            (folder / f"{name}_page.py").write_text(begins + "\n".join(blocks))
        for number, block in enumerate(read_blocks(page, "python [^\n]*")):
            (folder / f"{name}_program{number}.py").write_text(
                block if "import lakemq\n" in block else beginning + block
            )
    assert len([*folder.iterdir()]) > 20
    return folder


def run_mypy(folder: Path, *options: str) -> str:
    mypy = [sys.executable, "-m", "mypy", "--strict", "--disable-error-code=import-untyped", *options, "."]
    return subprocess.run(mypy, cwd=folder, capture_output=True, text=True, check=False).stdout


def run_pyright(
    folder: Path, ignored_rules: tuple[str, ...] = (), python: str = sys.executable, **config: object
) -> list[tuple[str, int, str, str]]:
    """Return (file, line, severity, message) of all that pyright says of a folder in its strict mode.

    python: the interpreter whose packages it sees. config: further settings of pyright.
    """
    if not PYRIGHT.exists():
        pytest.skip("pyright is not installed: make test-all does that")
    rules = {**dict.fromkeys(ignored_rules, False), "reportMissingTypeStubs": False}
    (folder / "pyrightconfig.json").write_text(json.dumps({"typeCheckingMode": "strict", **rules, **config}))
    command = [sys.executable, "-m", "basedpyright", "--outputjson", "--pythonpath", python]
    env = {**os.environ, "PYTHONPATH": str(PYRIGHT)}
    done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, check=False)
    report = json.loads(done.stdout)
    assert report["summary"]["filesAnalyzed"] > 0, done.stderr
    return [
        (
            Path(diagnostic["file"]).name,
            diagnostic["range"]["start"]["line"] + 1,
            diagnostic["severity"],
            diagnostic["message"],
        )
        for diagnostic in report["generalDiagnostics"]
    ]


def find_lines(folder: Path, places: Iterator[tuple[str, int]]) -> set[tuple[str, str]]:
    return {(file, (folder / file).read_text().splitlines()[line - 1].strip()) for file, line in places}


def test_mypy_accepts_the_examples_in_its_strict_mode(examples: Path) -> None:
    assert run_mypy(examples).startswith("Success")


def test_pyright_accepts_the_examples_in_its_strict_mode(examples: Path) -> None:
    assert run_pyright(examples) == []


def test_mypy_accepts_the_programs_of_pages(pages: Path) -> None:
    errors = re.findall(r"^(.*?):(\d+): error", output := run_mypy(pages, *MYPY_FOR_PAGES), re.MULTILINE)
    assert find_lines(pages, ((file, int(line)) for file, line in errors)) == {DELIBERATE}, output


def test_pyright_accepts_the_programs_of_pages(pages: Path) -> None:
    diagnostics = run_pyright(pages, PYRIGHT_FOR_PAGES)
    assert find_lines(pages, ((file, line) for file, line, _, _ in diagnostics)) == {DELIBERATE, NOT_IN_STUBS}, (
        diagnostics
    )


def test_pyright_knows_the_first_lines_of_a_program_where_no_extra_is_installed(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import lakemq\n\nwith lakemq.connect('data/mq') as mq:\n    mq.producer().flush()\n"
    )
    bare = str(Path(sys.base_prefix, "bin/python3"))
    assert run_pyright(tmp_path, (), bare, extraPaths=[str(CHECKOUT / "src")]) == []


@pytest.fixture(scope="module")
def uses(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a program of right lines, whose types are revealed, and then of wrong ones."""
    folder = tmp_path_factory.mktemp("uses")
    (folder / "program.py").write_text(RIGHT + WRONG)
    return folder


WRONG_LINES = {RIGHT.count("\n") + 1 + number for number in range(WRONG.count("\n"))}


def test_mypy_knows_the_types_of_users_and_refuses_each_wrong_use(uses: Path) -> None:
    output = run_mypy(uses)
    revealed = re.findall(r'Revealed type is "(.*)"', output)
    assert [re.sub(r"[\w.]*\.", "", type_) for type_ in revealed] == REVEALED
    assert {int(line) for line in re.findall(r":(\d+): error", output)} == WRONG_LINES, output


def test_pyright_knows_the_types_of_users_and_refuses_each_wrong_use(uses: Path) -> None:
    """Unlike mypy, pyright also sees pyarrow-stubs, so tables of Arrow have types."""
    (uses / "arrow.py").write_text("import lakemq\nmq = lakemq.connect('data/mq')\nreveal_type(mq.sql('x'))\n")
    with (uses / "arrow.py").open("a") as file:
        file.write("reveal_type(mq.tail('t'))\n")
    diagnostics = run_pyright(uses, ("reportUnusedExpression", "reportUnusedCallResult"))
    revealed = {
        file: [
            message.split(" is ")[1].strip('"')
            for name, _, level, message in diagnostics
            if (name, level) == (file, "information")
        ]
        for file in ("program.py", "arrow.py")
    }
    assert revealed == {"program.py": REVEALED, "arrow.py": ["Table", "Iterator[Table]"]}
    assert {line for _, line, level, _ in diagnostics if level == "error"} == WRONG_LINES, diagnostics
