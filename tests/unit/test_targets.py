"""Every test runs in `.ci/run` or `make test-nightly`, and `make test` shows the capabilities of the page."""

import ast
import itertools
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from _pytest.mark.expression import Expression

CHECKOUT = Path(__file__).parents[2]
CONTRIBUTING = CHECKOUT / "docs/contributing.md"
MARKERS = ("slow", "extended", "nightly", "hypothesis")
NOT_IN_CI = {"test", "test-fast", "test-nightly", "test-busy"}
"""Targets that run a part of another one, or what no change waits for."""

CONTRACTS = {"tests/unit/test_files.py", "tests/unit/test_object_stores.py"}
"""These run again on real stores."""


class Command(NamedTuple):
    """A run of pytest: where it looks for tests, which files it ignores, and which sets of markers it selects."""

    paths: list[str]
    ignored: list[str]
    selected: set[frozenset[str]]

    def runs(self, file: str, markers: frozenset[str]) -> bool:
        """Tell whether it runs a test with these markers that stands in the file."""
        is_there = any(file == path or file.startswith(f"{path}/") for path in self.paths)
        return is_there and file not in self.ignored and markers in self.selected


def targets_of_ci() -> list[str]:
    script = (CHECKOUT / ".ci/run").read_text(encoding="utf-8")
    words = [word for line in re.findall(r"^make (.+)$", script, re.MULTILINE) for word in line.split()]
    return [word for word in words if not word.startswith("--")]


def combinations() -> Iterator[frozenset[str]]:
    """Yield all sets of markers that a test may have."""
    for count in range(len(MARKERS) + 1):
        yield from map(frozenset, itertools.combinations(MARKERS, count))


def select_combinations(expression: Expression) -> Iterator[frozenset[str]]:
    """Yield the sets of markers that the expression of `-m` matches."""
    for markers in combinations():
        if expression.evaluate(lambda name, markers=markers, **_: name in markers):
            yield markers


def pytest_commands(*targets: str) -> list[Command]:
    """Return what the targets run with pytest."""
    plan = subprocess.run(
        ["make", "--dry-run", "--always-make", f"PYTHON={sys.executable}", *targets],
        cwd=CHECKOUT,
        capture_output=True,
        text=True,
        check=True,
    )
    commands = []
    for line in re.split(r"\n|&&", plan.stdout.replace("\\\n", " ")):
        _, is_pytest, arguments = line.partition("bin/pytest ")
        if is_pytest:
            words = shlex.split(arguments)
            markers = words[words.index("-m") + 1] if "-m" in words else "slow or not slow"
            paths = [word for word in words if word.startswith("tests/")]
            ignored = [word.removeprefix("--ignore=") for word in words if word.startswith("--ignore=")]
            commands.append(Command(paths, ignored, set(select_combinations(Expression.compile(markers)))))
    return commands


FILES = sorted(str(path.relative_to(CHECKOUT)) for path in (CHECKOUT / "tests").rglob("test_*.py"))


def test_every_test_runs_in_ci_or_at_night_and_none_twice() -> None:
    """Only properties run in both, at night with more examples."""
    in_ci, nightly = pytest_commands(*targets_of_ci()), pytest_commands("test-nightly")
    for file, markers in itertools.product(FILES, combinations()):
        ci_count = sum(command.runs(file, markers) for command in in_ci)
        night_count = sum(command.runs(file, markers) for command in nightly)
        assert ci_count + night_count > 0, f"no target runs a test of {file} with the markers {set(markers)}"
        if file not in CONTRACTS:
            assert ci_count + night_count <= 1 + ("hypothesis" in markers), (file, markers)
            assert ci_count <= 1, (file, markers)
        if "nightly" in markers and file.startswith(("tests/faults/", "tests/spark/", "tests/stateful/")):
            assert ci_count == 0, (file, markers)


def test_ci_calls_every_target_that_no_other_contains() -> None:
    makefile = (CHECKOUT / "Makefile").read_text(encoding="utf-8")
    targets = {*re.findall(r"^(test[\w-]*):", makefile, re.MULTILINE)} - NOT_IN_CI
    assert {"lint", "programs", *targets} == {*targets_of_ci()}


def test_make_test_is_a_part_of_ci() -> None:
    test, in_ci = pytest_commands("test"), pytest_commands("test-all")
    for file, markers in itertools.product(FILES, combinations()):
        if any(command.runs(file, markers) for command in test):
            assert any(command.runs(file, markers) for command in in_ci), (file, markers)


# -- capabilities ---------------------------------------------------------------------------------------


def read_capabilities() -> dict[str, list[str]]:
    """Return the table of capabilities in the contributing page: a name, and tests as `file` or `file::test`."""
    page = CONTRIBUTING.read_text(encoding="utf-8")
    table = page[page.index("| capability | shown by |") :].split("\n\n")[0]
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:]]
    return {name: re.findall(r"`(tests/[\w/]+\.py(?:::\w+)?)`", shown) for name, shown in rows}


def is_left_out(node: ast.AST) -> bool:
    """Tell whether a decorator or a `pytestmark` leaves a test, and not only some cases of it, to another target."""
    text = ast.unparse(node)
    return "parametrize" not in text and bool(re.search(r"mark\.(extended|nightly)\b", text))


def names_in_make_test(file: str) -> set[str]:
    """Return the names of the tests of a file that `make test` runs."""
    module = ast.parse((CHECKOUT / file).read_text(encoding="utf-8"))
    if any(ast.unparse(node).startswith("pytestmark = ") and is_left_out(node) for node in module.body):
        return set()
    functions = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")]
    machines = {node.targets[0].id for node in module.body if isinstance(node, ast.Assign) and is_machine(node)}
    return machines | {test.name for test in functions if not any(map(is_left_out, test.decorator_list))}


def is_machine(node: ast.Assign) -> bool:
    """Tell whether a line names a state machine as a test: `TestGroups = Groups.TestCase`."""
    return isinstance(node.value, ast.Attribute) and node.value.attr == "TestCase"


@pytest.mark.slow
def test_make_test_shows_every_capability() -> None:
    capabilities = read_capabilities()
    assert len(capabilities) > 20
    assert [name for name, places in capabilities.items() if not places] == []
    left_out = []
    for place in (place for places in capabilities.values() for place in places):
        file, _, name = place.partition("::")
        names = names_in_make_test(file)
        left_out += [place] if not (name in names if name else names) else []
    assert left_out == []
