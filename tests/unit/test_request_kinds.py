"""A new kind of request changes three files of the core, as docs/contributing.md says: values, rules and rows."""

import inspect
import os
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import CHECKOUT, PACKAGE_FOLDERS, copy_folder

from lakemq.engine.protocol.machine import DECIDE
from lakemq.engine.protocol.values.base import Request

PATCH = Path(__file__).with_name("pause_topic.patch")

SUBJECT = {f"engine/protocol/{folder}/topics.py" for folder in ("values", "rules", "rows")}
EFFECT = {"engine/protocol/rules/log.py", "engine/protocol/errors.py"}
"""Publishes are refused meanwhile, which is a matter of the log."""
COLUMN = {"tables/specs/topics.py"}

RESTORE = """
from protocol_harness import Harness
from lakemq.engine.protocol.projection import project, restore
from lakemq.engine.protocol.rows.clients import build_watermark
from lakemq.engine.protocol.values.topics import CreateTopic, PauseTopic
from lakemq.tables.specs.journal import WATERMARKS

mq = Harness()
mq.one(CreateTopic("t", 1))
mq.one(PauseTopic("t", 5000))
tables = project(mq.state, mq.steps)
(watermark,) = WATERMARKS.rows(build_watermark(mq.state, 0))
paused_until_ms = restore(watermark, tables).topics[1].paused_until_ms
assert paused_until_ms == mq.state.now_ms + 5000, paused_until_ms
"""


def list_patched() -> set[str]:
    return {line.removeprefix("+++ b/") for line in PATCH.read_text().splitlines() if line.startswith("+++ ")}


def test_patch_of_the_page_changes_the_files_that_the_page_names() -> None:
    core = {path for path in list_patched() if not path.startswith("tests/")}
    assert core == SUBJECT | EFFECT | COLUMN


def test_each_request_names_the_module_of_its_rule() -> None:
    rules = {kind: rule.__module__.rpartition(".")[2] for kind, rule in DECIDE.items() if issubclass(kind, Request)}
    first_lines = {kind: inspect.getsource(kind).splitlines()[0] for kind in rules}
    assert [kind for kind, rule in rules.items() if f"Decided by `rules/{rule}.py`" not in first_lines[kind]] == []
    assert len(rules) > 20


@pytest.mark.slow
@pytest.mark.extended
def test_request_of_the_patch_is_decided_applied_and_restored(tmp_path: Path) -> None:
    """In a copy of the package: the codec, the machine, the projection and the player of stories find the new kind."""
    copy = tmp_path / "copy"
    for name in (*PACKAGE_FOLDERS, "tests"):
        copy_folder(CHECKOUT / name, copy / name)
    applied = subprocess.run(["git", "apply", "-C1", "--recount", str(PATCH)], cwd=copy, capture_output=True, text=True)
    assert applied.returncode == 0, f"Change {PATCH.name} so that it fits the code again: {applied.stderr}"
    environment = os.environ | {"PYTHONPATH": f"{copy}:{copy / 'tests'}"}
    play = ["-m", "pytest", "-q", "-n", "0", "tests/golden", "-k", "paused and topic"]
    for arguments in (play, ["-c", RESTORE]):
        run = subprocess.run(
            [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, timeout=60
        )
        assert run.returncode == 0, run.stdout + run.stderr
