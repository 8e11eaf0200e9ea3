"""The docs say what is: generated pages are fresh, links lead somewhere, the worked example comes out as printed."""

from __future__ import annotations

import configparser
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
import yaml

import lakemq
from lakemq.engine.client.sql.dialects import SqlDialect
from lakemq.engine.client.sql.query import run_query
from lakemq.engine.namespace.config import ENGINE
from lakemq.jobs import docs
from lakemq.tables.views import VIEWS

CHECKOUT = Path(__file__).parents[2]
DOCS = CHECKOUT / "docs"
ADRS = sorted((DOCS / "adr").glob("[0-9]*.md"))
PAGES = sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md")])


# -- generated pages ------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", docs.PAGES)
def test_a_generated_page_is_fresh(name: str) -> None:
    assert (DOCS / name).read_text(encoding="utf-8") == docs.PAGES[name](), "run: make docs"


@pytest.mark.slow
def test_stale_and_missing_pages_are_told_and_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in docs.PAGES:
        shutil.copy(DOCS / name, tmp_path)
    docs.main(["--folder", str(tmp_path)])
    capsys.readouterr()
    (tmp_path / "errors.md").write_text("old")
    (tmp_path / "tables.md").unlink()
    assert docs.main(["--check", "--folder", str(tmp_path)]) == 1
    told = capsys.readouterr().out
    assert "errors.md: stale" in told
    assert "tables.md: stale" in told
    assert (tmp_path / "errors.md").read_text() == "old"
    assert docs.main(["--folder", str(tmp_path)]) == 0
    assert docs.main(["--check", "--folder", str(tmp_path)]) == 0
    assert (tmp_path / "errors.md").read_text() == docs.errors_page()


def test_every_row_of_a_generated_table_has_as_many_cells_as_its_head() -> None:
    for name, page in docs.PAGES.items():
        for table in re.findall(r"(?:^\|.*\|$\n?)+", page(), re.MULTILINE):
            widths = {len(re.findall(r"(?<!\\)\|", line)) for line in table.splitlines()}
            assert len(widths) == 1, f"{name}: {table[:200]}"


def test_the_settings_file_lists_every_setting_with_its_default() -> None:
    listed = yaml.safe_load((CHECKOUT / "conf/lakemq.yaml").read_text())
    assert listed == ENGINE.defaults()


# -- links ----------------------------------------------------------------------------------------------


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_links_lead_somewhere(page: Path) -> None:
    prose = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    for link in re.findall(r"\]\(([^)]+)\)", prose):
        if link.startswith(("http://", "https://")):
            continue
        path, _, anchor = unquote(link).partition("#")
        target = (page.parent / path).resolve() if path else page
        assert target.exists(), f"{link} in {page.name}"
        assert not anchor or anchor in anchors(target), f"{link} in {page.name}"


def wrong_links(page_name: str, prose: str) -> list[str]:
    """Return the links whose text names another decision or page than the one they lead to."""
    page_names = {page.stem.replace("-", " "): page.stem for page in DOCS.glob("*.md")}
    wrong = []
    for text, link in re.findall(r"\[([^]]+)\]\(([^)#]*\.md)[^)]*\)", prose):
        target = Path(unquote(link)).stem
        decision = re.fullmatch(r"(?:decision|adr) (\d+)", text, re.IGNORECASE)
        expected = f"{int(decision[1]):04}" if decision else page_names.get(text.lower(), target)
        if not target.startswith(expected):
            wrong.append(f"[{text}]({link}) in {page_name}")
    return wrong


def test_links_lead_to_the_decision_or_page_that_they_name() -> None:
    assert wrong_links("p", "[Decision 23](adr/0024-delays-are-ranges.md) [groups](docs/queues.md#x)") == [
        "[Decision 23](adr/0024-delays-are-ranges.md) in p",
        "[groups](docs/queues.md) in p",
    ]
    assert [link for page in PAGES for link in wrong_links(page.name, page.read_text(encoding="utf-8"))] == []


def test_pictures_are_small_and_shown() -> None:
    pictures = [path for path in (DOCS / "pictures").iterdir() if path.suffix in (".png", ".svg")]
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    of_the_console = {path.name for path in pictures if path.name.startswith("console-")}
    assert {path.name for path in pictures} - of_the_console == {"report.png", "shell.svg"}
    assert all(path.stat().st_size < 150_000 for path in pictures)
    assert all(f"docs/pictures/{path.name}" in readme for path in pictures if path.name not in of_the_console)
    console = (DOCS / "console.md").read_text(encoding="utf-8")
    assert {*re.findall(r"\(pictures/(console-[\w-]+\.png)\)", console)} == of_the_console


def test_files_that_the_docs_name_are_there() -> None:
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        for name in re.findall(r"`((?:engine|tables|jobs|conf|tests|docs)/[\w/.-]+)`", text):
            assert (CHECKOUT / name).exists(), f"{name} in {page.name}"


def test_every_page_is_linked_from_the_readme() -> None:
    readme = (CHECKOUT / "README.md").read_text(encoding="utf-8")
    missing = [page.name for page in DOCS.glob("*.md") if f"docs/{page.name}" not in readme]
    assert not missing


# -- decisions ------------------------------------------------------------------------------------------


def test_decisions_are_numbered_without_gaps_and_indexed() -> None:
    index = (DOCS / "adr/README.md").read_text(encoding="utf-8")
    assert [int(page.name[:4]) for page in ADRS] == list(range(1, len(ADRS) + 1))
    for number, page in enumerate(ADRS, 1):
        title = page.read_text(encoding="utf-8").splitlines()[0]
        assert title.startswith(f"# {number}. ")
        assert f"{number}. [{title.split('. ', 1)[1]}]({page.name})" in index


@pytest.mark.parametrize("page", ADRS, ids=lambda page: page.stem)
def test_a_decision_has_its_four_parts(page: Path) -> None:
    sections = re.findall(r"^## (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    assert sections == ["Context", "Decision", "Evidence", "Consequences"]
    assert len(page.read_text(encoding="utf-8").splitlines()) < 80


def test_every_dependency_has_its_reason() -> None:
    setup = configparser.ConfigParser(interpolation=None)
    setup.read(CHECKOUT / "setup.cfg")
    lines = "\n".join([setup["options"]["install_requires"], *setup["options.extras_require"].values()]).splitlines()
    required = {re.split(r"[<>=!\[; ]", line)[0] for line in lines if line and not line.startswith(("#", "%"))}
    bullets = re.findall(r"^- ((?:`[\w-]+`(?:, )?)+):", (ADRS[1]).read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for bullet in bullets for name in re.findall(r"[\w-]+", bullet)} == required


# -- examples -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def example(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder in which the worked example of concepts.md has run; what it printed is in `out.txt`."""
    folder = tmp_path_factory.mktemp("concepts")
    (code,) = re.findall(r"^```python\n(.*?)^```$", concepts(), re.DOTALL | re.MULTILINE)
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=folder, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    (folder / "out.txt").write_text(done.stdout)
    return folder


def concepts() -> str:
    return (DOCS / "concepts.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_the_worked_example_prints_what_the_page_says(example: Path) -> None:
    assert f"prints `{(example / 'out.txt').read_text().strip()}`" in concepts()


@pytest.mark.slow
def test_the_worked_example_leaves_the_rows_on_the_page(example: Path) -> None:
    shown = re.findall(r"^```sql\n(.*?)^```$\n\n```text\n(.*?)^```$", concepts(), re.DOTALL | re.MULTILINE)
    assert len(shown) == concepts().count("```sql") == 4
    for query, printed in shown:
        with lakemq.connect(str(example / "data/mq")) as mq:
            columns, rows = run_query(mq.namespace, query, dialect=SqlDialect.spark)
            found = [columns, *([str(cell) for cell in row] for row in rows)]
        assert found == [line.split() for line in printed.splitlines()], query


@pytest.mark.slow
def test_the_example_of_sql_from_python_counts_messages(example: Path) -> None:
    page = (DOCS / "sql.md").read_text(encoding="utf-8")
    block, *_ = re.findall(r"^```python\n(.*?)^```$", page[page.index("## Without a JVM") :], re.DOTALL | re.MULTILINE)
    with lakemq.connect(str(example / "data/mq")) as mq:
        names: dict[str, Any] = {"mq": mq}
        exec(block, names)
        assert names["messages"]
        assert names["messages"] == {topic: sum(mq.end_offsets(topic).values()) for topic in names["messages"]}


def test_manifests_parse_and_start_the_command() -> None:
    page = (DOCS / "operations.md").read_text(encoding="utf-8")
    (unit,) = re.findall(r"^```ini\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    (manifest,) = re.findall(r"^```yaml\n(.*?)^```$", page, re.DOTALL | re.MULTILINE)
    parsed = configparser.ConfigParser()
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(unit)
    assert parsed["Service"]["ExecStart"].endswith("/lakemq serve")
    deployed = yaml.safe_load(manifest)
    template = deployed["spec"]["template"]
    assert deployed["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert template["spec"]["containers"][0]["command"] == ["lakemq", "serve"]


def test_every_view_has_a_query_on_the_page() -> None:
    page = (DOCS / "sql.md").read_text(encoding="utf-8")
    sections = re.split(r"^### (\w+)$", page[page.index("## Views") :], flags=re.MULTILINE)
    found = dict(zip(sections[1::2], sections[2::2], strict=True))
    assert {*found} == {*VIEWS, "rejected_rows"}
    for view, text in found.items():
        assert re.search(rf"^```sql\n[^`]*\bFROM {view}\b", text, re.MULTILINE), view
