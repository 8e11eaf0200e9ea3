"""The programs of the tutorial and of some guides run as they stand, and print what the pages say."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from lakemq.engine.client.consume.options import CONSUMER
from lakemq.engine.client.producer.options import PRODUCER
from lakemq.engine.client.topics import TOPIC
from lakemq.engine.namespace.config import ENGINE, REPLACEMENTS, UNSUPPORTED

DOCS = Path(__file__).parents[2] / "docs"
PAGES = {
    "tutorial.md": 8,
    "producers.md": 4,
    "from-kafka.md": 2,
    "from-solace.md": 1,
    "schemas.md": 4,
    "tracing.md": 1,
    "operations.md": 0,
}
"""Pages, with their numbers of outputs."""


def blocks(page: str, language: str) -> list[str]:
    text = (DOCS / page).read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE)


def run(command: list[str], folder: Path) -> str:
    """Return what a command prints. It must succeed and write no error."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=200, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES)
def test_the_programs_print_what_the_page_says(tmp_path: Path, page: str) -> None:
    printed = run([sys.executable, "-c", "\n".join([*blocks(page, "python"), "mq.close()"])], tmp_path)
    assert printed == "".join(blocks(page, "text"))
    assert len(blocks(page, "text")) == PAGES[page]
    if page == "tutorial.md":
        check_commands_of_the_tutorial(tmp_path)
    elif page == "schemas.md":
        check_commands_of_schemas(tmp_path)
    else:
        assert blocks(page, "sh") == []


def run_commands(page: str, folder: Path) -> str:
    """Run the commands of a page in the folder in which its programs have run, and return what they print."""
    (script,) = blocks(page, "sh")
    command = f'lakemq() {{ "{sys.executable}" -m lakemq.jobs.cli "$@"; }}\nset -euo pipefail\n{script}'
    return run(["bash", "-c", command], folder)


def check_commands_of_schemas(folder: Path) -> None:
    fields = [{"name": "order", "type": "long"}, {"name": "amount", "type": "double"}]
    (folder / "payment.avsc").write_text(json.dumps({"type": "record", "name": "Payment", "fields": fields}))
    shown = run_commands("schemas.md", folder)
    assert re.search(r"\bavro\b", shown), shown
    assert "Payment" in shown


def check_commands_of_the_tutorial(folder: Path) -> None:
    shown = run_commands("tutorial.md", folder)
    for name in ("departures", "departures.dlq", "reminders", "totals", "display", "punctuality", "add-up"):
        assert re.search(rf"\b{re.escape(name)}\b", shown), name
    assert re.search(r"topic_created\s+4\b", shown)


def left_column(page: str, heading: str) -> list[str]:
    """Return the names in code in the first column of the table below a heading."""
    text = (DOCS / page).read_text(encoding="utf-8")
    section = text[text.index(f"## {heading}\n") :].split("\n## ")[0]
    cells = re.findall(r"^\| (.+?) \|", section, re.MULTILINE)
    return [name for cell in cells for name in re.findall(r"`([a-z][\w.*-]+)`", cell)]


def test_every_option_of_kafka_on_the_page_exists_or_is_refused_with_a_reason() -> None:
    own = {name.replace("_", ".") for name in [*PRODUCER.declared, *CONSUMER, "enable_idempotence"]}
    settings = {*TOPIC.declared, *ENGINE.declared, *UNSUPPORTED, *REPLACEMENTS}
    names = [name for name in left_column("from-kafka.md", "Options") if not name.endswith("*")]
    assert len(names) > 30
    unknown = [name for name in names if name not in own | settings and name != "group.protocol"]
    assert unknown == []


def test_what_the_page_calls_the_same_option_is_one() -> None:
    text = (DOCS / "from-kafka.md").read_text(encoding="utf-8")
    rows = [line for line in text.splitlines() if re.search(r"\| (settings of a topic, )?the same \|$", line)]
    same = [name for line in rows for name in re.findall(r"`([a-z]+(?:\.[a-z]+)+)`", line)]
    options = {name.replace("_", ".") for name in [*PRODUCER.declared, *CONSUMER]} | {*TOPIC.declared}
    assert len(same) >= 12
    assert {*same} <= options
