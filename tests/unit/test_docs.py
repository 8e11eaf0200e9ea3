"""The docs say what is: generated pages are fresh, links lead somewhere, names, manifests and tables are right."""

import configparser
import doctest
import inspect
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import generated
import pytest
import typer
import yaml
from unit.pages import CHECKOUT, DOCS, read_blocks, read_page

import lakemq
from lakemq.engine.client.consume.options import CONSUMER
from lakemq.engine.client.producer.options import PRODUCER
from lakemq.engine.client.topics import TOPIC
from lakemq.engine.namespace.config import ENGINE
from lakemq.engine.protocol.unsupported_settings import unknown_name_error
from lakemq.jobs.cli import app

TEXTS = {path: path.read_text(encoding="utf-8") for path in sorted([*CHECKOUT.glob("*.md"), *DOCS.rglob("*.md")])}
"""The text of each page."""


# -- generated pages ------------------------------------------------------------------------------------


@pytest.mark.slow
def test_generated_pages_are_fresh() -> None:
    assert generated.stale_pages(DOCS) == [], "run: make docs"


def test_settings_file_lists_every_setting_with_its_default() -> None:
    assert yaml.safe_load((CHECKOUT / "conf/lakemq.yaml").read_text()) == ENGINE.defaults()


def test_pages_and_makefile_name_the_python_versions_of_the_package() -> None:
    package = (CHECKOUT / "setup.cfg").read_text(encoding="utf-8")
    versions = re.findall(r"Python :: (3\.\d+)$", package, re.MULTILINE)
    assert f"python_requires = >={versions[0]}\n" in package
    for page in ("README.md", "setup.md"):
        assert f"Python {versions[0]} to {versions[-1]}" in read_page(page), page
    names = " ".join(f"python{version}" for version in reversed(versions))
    assert f"for name in python3 {names}; do" in (CHECKOUT / "Makefile").read_text(encoding="utf-8")


# -- links and names ------------------------------------------------------------------------------------


def test_links_of_the_readme_and_its_neighbours_lead_to_files() -> None:
    """Those of `docs` are checked when the site is built: `test_site.py`."""
    pages = {page: text for page, text in TEXTS.items() if page.parent == CHECKOUT}
    links = [link for text in pages.values() for link in re.findall(r"\]\((?!https?://|#)([^)#]+)", text)]
    assert [link for link in links if not (CHECKOUT / unquote(link)).exists()] == []


def test_files_that_the_docs_name_are_there() -> None:
    missing = [
        f"{name} in {page.name}"
        for page, text in TEXTS.items()
        for name in re.findall(r"`((?:engine|tables|jobs|conf|tests|docs)/[\w/.-]+)`", text)
        if not (CHECKOUT / name).exists()
    ]
    assert missing == []


# -- manifests ------------------------------------------------------------------------------------------


def test_manifests_of_operations_start_the_command() -> None:
    (unit,), (manifest,) = read_blocks("operations.md", "ini"), read_blocks("operations.md", "yaml")
    parsed = configparser.ConfigParser()
    parsed.optionxform = str  # type: ignore[assignment, method-assign]
    parsed.read_string(unit)
    assert parsed["Service"]["ExecStart"].endswith("/lakemq serve")
    deployment = yaml.safe_load(manifest)["spec"]
    assert deployment["selector"]["matchLabels"] == deployment["template"]["metadata"]["labels"]
    assert deployment["template"]["spec"]["containers"][0]["command"] == ["lakemq", "serve"]


def test_manifest_of_clusters_names_settings_and_volumes_that_exist() -> None:
    (manifest,) = read_blocks("clusters.md", "yaml")
    deployment, settings = yaml.safe_load_all(manifest)
    labels, pod = deployment["spec"]["template"]["metadata"]["labels"], deployment["spec"]["template"]["spec"]
    assert deployment["spec"]["selector"]["matchLabels"] == labels
    assert pod["topologySpreadConstraints"][0]["labelSelector"]["matchLabels"] == labels
    (container,) = pod["containers"]
    assert container["command"][:2] == ["lakemq", "serve"]
    assert {mount["name"] for mount in container["volumeMounts"]} == {volume["name"] for volume in pod["volumes"]}
    assert pod["volumes"][0]["configMap"]["name"] == settings["metadata"]["name"]
    assert {*yaml.safe_load(settings["data"]["lakemq.yaml"])} <= {*ENGINE.declared}


# -- names of the product on pages ----------------------------------------------------------------------


def list_options_of_kafka() -> Iterator[tuple[str, str]]:
    """Yield the options of Kafka on its page, with the last cell of their row."""
    page = read_page("from-kafka.md")
    section = page[page.index("## Options\n") :].split("\n## ")[0]
    for names, cell in re.findall(r"^\| (.+?) \| (?:.+ \| )?(.+) \|$", section, re.MULTILINE):
        yield from ((name, cell) for name in re.findall(r"`([a-z][\w.*-]+)`", names) if not name.endswith("*"))


def test_options_of_kafka_on_the_page_exist_or_are_refused_with_a_reason() -> None:
    own = {name.replace("_", ".") for name in [*PRODUCER.declared, *CONSUMER]} | {*TOPIC.declared}
    others = {*ENGINE.declared, "enable.idempotence", "group.protocol"}
    options = dict(list_options_of_kafka())
    assert len(options) > 30
    rest = [name for name in options if name not in own | others]
    assert [name for name in rest if "Unknown" in str(unknown_name_error(name, (), "option"))] == []
    same = {name for name, cell in options.items() if cell in ("the same", "settings of a topic, the same")}
    assert len(same) >= 12
    assert same <= own


# -- docstrings of public names -------------------------------------------------------------------------


def test_public_names_show_an_example_that_compiles() -> None:
    names = [name for name in lakemq.__all__ if not inspect.ismodule(getattr(lakemq, name))]
    examples = {name: doctest.DocTestParser().get_examples(getattr(lakemq, name).__doc__) for name in names}
    assert [name for name in names if not examples[name]] == []
    for example in (example for listed in examples.values() for example in listed):
        compile(example.source, example.source, "single")


# -- Kafka's tools --------------------------------------------------------------------------------------


def read_rows_of_tools() -> list[tuple[str, str, str]]:
    """Return (tool, its option, our command) for each row of the page of Kafka's tools."""
    rows = []
    for section in read_page("kafka-tools.md").split("\n## ")[1:]:
        tool, *lines = section.splitlines()
        cells = [re.split(r"(?<!\\)\|", line)[1:-1] for line in lines if line.startswith("|")]
        assert [cell.strip() for cell in cells[0]] == [tool, "lakemq"]
        rows += [(tool, theirs.strip(), ours.strip()) for theirs, ours in cells[2:]]
    return rows


def is_command_with_options(root: Any, line: str) -> bool:
    """Return whether the words name a command of the tree, and its options exist."""
    command, words = root, line.split()[1:]
    while words and hasattr(command, "commands") and not words[0].startswith("--"):
        if words[0] not in command.commands:
            return False
        command, words = command.commands[words[0]], words[1:]
    parameters = [*command.params, *root.params]
    options = {name for parameter in parameters for name in (*parameter.opts, *parameter.secondary_opts)}
    return {word for word in words if word.startswith("--")} <= options


def test_options_of_kafkas_tools_have_a_command_that_exists_or_a_reason() -> None:
    rows = read_rows_of_tools()
    assert len({(tool, theirs) for tool, theirs, _ in rows}) == len(rows) > 90
    lines = [line for _, _, ours in rows for line in re.findall(r"`(lakemq [^`]*)`", ours)]
    assert len(lines) > 80
    root = typer.main.get_command(app)
    assert [line for line in lines if not is_command_with_options(root, line)] == []
    assert [row for row in rows if "`lakemq" not in row[2] and not row[2].startswith("None")] == []
