"""Assignors of other packages: how they are found, and that nothing they do harms anything else."""

import re
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import lakemq.assignors
from lakemq.assignors import Member
from lakemq.engine.protocol.assignors import BUILT_IN, check_assignment
from lakemq.engine.sequencer.assignments import (
    GROUP,
    ComputedAssignment,
    PlugInThreads,
    compute_assignment,
    find_assignor,
)
from lakemq.errors import UnsupportedAssignor

COUNTS = {"t": 3, "u": 1, "nobody's": 2}
MEMBERS = {"c1": Member(("t",)), "c2": Member(("t", "u")), "c3": Member(("gone",))}
GOOD = {"c1": [("t", 0), ("t", 1)], "c2": [("t", 2), ("u", 0)], "c3": []}
WHOLE_TOPICS = {"c1": [("t", 0), ("t", 1), ("t", 2)], "c2": [("u", 0)], "c3": []}
PATIENCE_S = 30.0

Install = Callable[..., str]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Install]:
    """Put a package on the path whose module has the given code. Its entry points are `names=attributes`."""
    monkeypatch.syspath_prepend(tmp_path)
    modules: list[str] = []

    def put(code: str, **names: str) -> str:
        module = f"plug_in_{abs(hash(tmp_path))}_{len(modules)}"
        modules.append(module)
        (tmp_path / f"{module}.py").write_text(textwrap.dedent(code))
        folder = tmp_path / f"{module}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {module}\nVersion: 1.0\n")
        lines = [f"{name} = {module}:{attribute}" for name, attribute in names.items()]
        (folder / "entry_points.txt").write_text("\n".join([f"[{GROUP}]", *lines, ""]))
        return module

    yield put
    for module in modules:
        sys.modules.pop(module, None)


def compute(name: str, threads: PlugInThreads | None = None, timeout_s: float = PATIENCE_S) -> ComputedAssignment:
    return compute_assignment(name, "range", COUNTS, MEMBERS, timeout_s, (threads or PlugInThreads()).run)


def check_fallback(computed: ComputedAssignment) -> str:
    """Assert that the fallback made the assignment, and return the problem of the plug-in."""
    assert (computed.assignor, computed.assignment) == ("range", BUILT_IN["range"](COUNTS, MEMBERS))
    assert computed.problem is not None
    assert len(computed.problem.splitlines()) == 1
    assert len(computed.problem.encode()) < 1000
    return computed.problem


# -- what is found --------------------------------------------------------------------------------------


def test_plug_in_does_not_replace_a_built_in_assignor_of_its_name(install: Install) -> None:
    install("raise SystemExit", range="assign")
    assert find_assignor("range") is BUILT_IN["range"]
    assert compute("range") == ComputedAssignment(BUILT_IN["range"](COUNTS, MEMBERS), "range")


def test_example_of_the_docstring_is_a_plug_in(install: Install) -> None:
    examples = re.findall(r"(?:^    .*\n|^\n)+", lakemq.assignors.__doc__ or "", re.MULTILINE)
    code, setup = (textwrap.dedent(example) for example in examples if example.strip())
    (name, attribute) = re.findall(r"^ *([\w-]+) = [\w.]+:(\w+)$", setup, re.MULTILINE)[0]
    install(code, **{name: attribute})
    assert compute(name) == ComputedAssignment(WHOLE_TOPICS, "whole-topics")


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("raise RuntimeError('no\\nway')", "RuntimeError: no way"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("raise KeyboardInterrupt", "KeyboardInterrupt"),
        ("import not_there_at_all", "ModuleNotFoundError"),
        ("", "AttributeError"),
        ("spread = 3", "is not a function"),
        ("spread = lambda: None", None),
    ],
)
def test_plug_in_that_cannot_be_loaded_is_unsupported(install: Install, code: str, reason: str | None) -> None:
    install(code, spread="spread")
    if reason is None:
        assert callable(find_assignor("spread"))
        return
    with pytest.raises(UnsupportedAssignor, match=reason):
        find_assignor("spread")
    assert reason in check_fallback(compute("spread"))


def test_unknown_assignor_is_unsupported_and_the_error_lists_the_known_ones() -> None:
    with pytest.raises(UnsupportedAssignor, match=r"'spread'.*range, roundrobin, sticky, cooperative-sticky"):
        find_assignor("spread")
    assert "UNSUPPORTED_ASSIGNOR" in check_fallback(compute("spread"))


def test_two_packages_with_one_name_are_refused(install: Install) -> None:
    code = "def assign(counts, members): ..."
    first, second = install(code, spread="assign"), install(code, spread="assign")
    with pytest.raises(UnsupportedAssignor, match=f"{first}:assign, {second}:assign"):
        find_assignor("spread")


# -- what counts as an assignment ---------------------------------------------------------------------------


INVALID_ASSIGNMENTS: list[tuple[Any, str]] = [
    (None, "it does not map member ids to pairs"),
    ({**GOOD, "x": []}, "'x' is no member"),
    ({**GOOD, 3: []}, "'3' is no member"),
    ({**GOOD, "c3": None}, "it does not map member ids to pairs"),
    ({**GOOD, "c3": [("t", 0, 1)]}, "it does not map member ids to pairs"),
    ({**GOOD, "c3": [("t", "0")]}, "it does not map member ids to pairs"),
    ({**GOOD, "c3": [("v", 0)]}, "no partition v-0"),
    ({**GOOD, "c3": [("t", 3)]}, "no partition t-3"),
    ({**GOOD, "c3": [("t", -1)]}, "no partition t--1"),
    ({**GOOD, "c2": [*GOOD["c2"], ("t", 0)]}, "t-0 goes to 'c1' and 'c2'"),
    ({**GOOD, "c3": [("nobody's", 0)]}, "'c3' gets nobody's-0, and has not subscribed the topic"),
    ({**GOOD, "c1": [*GOOD["c1"], ("t", 0)]}, "a member gets a partition twice"),
    ({"c1": GOOD["c1"]}, "nobody gets t-2, u-0, though"),
    ({}, "nobody gets t-0, t-1, t-2, u-0, though"),
]


# The ids are numbers, because pytest would name the cases after their values.
@pytest.mark.parametrize("number", range(len(INVALID_ASSIGNMENTS)))
def test_invalid_assignment_is_a_value_error(number: int) -> None:
    assignment, wrong = INVALID_ASSIGNMENTS[number]
    with pytest.raises(ValueError, match=wrong) as refused:
        check_assignment(assignment, COUNTS, MEMBERS)
    assert type(refused.value) is ValueError
    assert len(str(refused.value).splitlines()) == 1


def test_assignment_of_a_plug_in_is_sorted_and_has_all_members() -> None:
    assignments = [
        GOOD,
        {"c2": [("u", 0), ("t", 2)], "c1": (["t", 1], ["t", 0])},
        {"c1": iter([("t", np.int64(1)), ("t", np.uint8(0))]), np.str_("c2"): {("u", 0), ("t", 2)}},
    ]
    for assignment in assignments:
        clean = check_assignment(assignment, COUNTS, MEMBERS)
        assert clean == GOOD
        assert list(clean) == sorted(MEMBERS)
        assert {type(member_id) for member_id in clean} == {str}
        assert {(type(t), type(p)) for partitions in clean.values() for t, p in partitions} == {(str, int)}


# -- when the fallback stands in ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ("raise KeyError('t')", "it raises KeyError: 't'"),
        ("raise SystemExit", "it raises SystemExit"),
        ("raise KeyboardInterrupt", "it raises KeyboardInterrupt"),
        ("raise ValueError('a\\nb' * 10_000)", "it raises ValueError: a b"),
        ("return assign(counts, members)", "it raises RecursionError"),
        ("return {}", "its assignment is invalid: nobody gets t-0"),
        ("counts.clear(); members.clear(); return {}", "its assignment is invalid: nobody gets t-0"),
    ],
)
def test_fallback_assigns_when_a_plug_in_fails(install: Install, body: str, reason: str) -> None:
    install(f"def assign(counts, members):\n    {body}", spread="assign")
    assert f"range stands in for the assignor spread: {reason}" in check_fallback(compute("spread"))
    assert set(COUNTS) == {"t", "u", "nobody's"}


def wait_for_module(module: str) -> ModuleType:
    end = time.monotonic() + PATIENCE_S
    while not hasattr(sys.modules.get(module), "go"):
        assert time.monotonic() < end
        time.sleep(0.001)
    return sys.modules[module]


def find_hanging_threads(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == f"assignor-{name}"]


@pytest.mark.parametrize("where", ["call", "import"])
def test_hanging_plug_in_is_not_called_again_until_it_returns(install: Install, where: str) -> None:
    """Other plug-ins, and another sequencer's, still work."""
    code = f"""
    import threading
    go = threading.Event()
    if {where!r} == "import":
        go.wait()
    def assign(counts, members):
        if {where!r} == "call":
            go.wait()
        return {GOOD!r}
    """
    module = install(code, slow="assign")
    install(f"def assign(counts, members): return {GOOD!r}", quick="assign")
    threads = PlugInThreads()
    try:
        assert "it took longer than 0.1 s" in check_fallback(compute("slow", threads, 0.1))
        for _ in range(3):
            assert "a call before still hangs" in check_fallback(compute("slow", threads))
        assert len(find_hanging_threads("slow")) == 1
        assert compute("quick", threads) == ComputedAssignment(GOOD, "quick")
    finally:
        wait_for_module(module).go.set()
    for thread in find_hanging_threads("slow"):
        thread.join(PATIENCE_S)
    assert compute("slow", threads) == ComputedAssignment(GOOD, "slow")
    assert not find_hanging_threads("slow")
