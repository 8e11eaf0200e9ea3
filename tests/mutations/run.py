"""Change every comparison and number in the rules of groups, one at a time, and see whether a test notices.

    .venv/bin/python tests/mutations/run.py [MODULE[.FUNCTION]]... [--list]

Each change is made to the code of one function, in a forked process, so that no file changes and nothing is imported
again. There the stories run, and, if they pass, the state machines and unit tests. A change that no test notices must
be listed in `allowed.yaml`, with the reason why this is right. A line there must go if a test notices its change, or if
its change no longer exists. The exit code is 1 if the list and the result differ.
"""

import __future__

import ast
import importlib
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest
import yaml
from hypothesis import Phase, settings

CHECKOUT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("allowed.yaml")
RULES = "lakemq.engine.protocol.rules"
DRAINING = (
    "_find_drained_topics",
    "_can_end",
    "_find_first_to_end",
    "_is_read_to_end",
    "_find_positions",
    "decide_end_partitions",
)
MODULES: dict[str, tuple[str, ...]] = {
    "groups": (),
    "reconciling": (),
    "joining": (),
    "deliveries": (),
    "redelivery": (),
    "offsets": (),
    "group_operations": (),
    "topics": DRAINING,
    "dead_letters": (),
}
"""Modules of the rules that are changed, each with the functions that are changed; if it names none, all are."""

QUICK = ("tests/golden", "-k", "story")
THOROUGH = (
    "tests/unit/test_group_bounds.py",
    "tests/unit/test_group_history.py",
    "tests/stateful/test_groups.py",
    "tests/stateful/test_queues.py",
    "tests/unit/test_protocol_projection.py",
)
MOST_S = 60
"""Processor time. A change is noticed if it makes the tests run as long without an end."""

_OTHER: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_SIGNS = {
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Is: "is",
    ast.IsNot: "is not",
    ast.In: "in",
    ast.NotIn: "not in",
}


class Change(NamedTuple):
    """A change. name: its name in the list; module, function: the changed function; code: the function's code with
    the change.
    """

    name: str
    module: str
    function: str
    code: CodeType


def changes_of(module: str) -> Iterator[Change]:
    """Yield all changes of a module, in order. Code outside of functions and defaults of arguments are not changed."""
    path = CHECKOUT / "engine/protocol/rules" / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    lines, counts = source.splitlines(), Counter[str]()
    tree = ast.parse(source)
    for function in tree.body:
        if not isinstance(function, ast.FunctionDef) or (MODULES[module] and function.name not in MODULES[module]):
            continue
        for description, line in _make_changes(function):
            name = f"{module}.{function.name}: {description} in `{lines[line - 1].strip()}`"
            counts[name] += 1
            if counts[name] > 1:
                name += f" ({counts[name]})"
            compiled = compile(ast.Module([function], []), str(path), "exec", __future__.annotations.compiler_flag)
            code = next(c for c in compiled.co_consts if isinstance(c, CodeType) and c.co_name == function.name)
            yield Change(name, module, function.name, code)


def _make_changes(function: ast.AST) -> Iterator[tuple[str, int]]:
    """Make one change after the other, and undo each before the next. Yield its description and its line."""
    body = function.body if isinstance(function, ast.FunctionDef) else []
    for node in (node for statement in body for node in ast.walk(statement)):
        if isinstance(node, ast.Compare):
            for i, op in enumerate(node.ops):
                node.ops[i] = _OTHER[type(op)]()
                yield f"{_SIGNS[type(op)]} -> {_SIGNS[_OTHER[type(op)]]}", node.lineno
                node.ops[i] = op
        elif isinstance(node, ast.Constant) and isinstance(node.value, int):
            value = node.value
            node.value = not value if isinstance(value, bool) else value + 1
            yield f"{value} -> {node.value}", node.lineno
            node.value = value


def is_noticed(change: Change, tests: Sequence[str]) -> bool:
    """Return whether these tests fail, or do not end, with the change."""
    child = os.fork()
    if child == 0:
        try:
            resource.setrlimit(resource.RLIMIT_CPU, (MOST_S, MOST_S))
            sys.stdout = sys.stderr = open(os.devnull, "w")  # noqa: SIM115 - the process ends with it
            function = getattr(importlib.import_module(f"{RULES}.{change.module}"), change.function)
            assert isinstance(function, FunctionType)
            function.__code__ = change.code
            os._exit(int(_run(tests)))
        except BaseException:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status) != 0


def _run(tests: Sequence[str], *more: str) -> int:
    return int(pytest.main(["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", *tests, *more]))


def main(arguments: Sequence[str]) -> int:
    os.chdir(CHECKOUT)
    chosen = [argument for argument in arguments if not argument.startswith("-")] or list(MODULES)
    changes = [
        change
        for module in MODULES
        for change in changes_of(module)
        if any(f"{change.module}.{change.function}".startswith(name) for name in chosen)
    ]
    if "--list" in arguments:
        print(*(change.name for change in changes), sep="\n")
        return 0
    # a failure is enough, it need not be shortened
    settings.register_profile("mutations", phases=(Phase.explicit, Phase.generate), database=None)
    settings.load_profile("mutations")
    for tests in (QUICK, THOROUGH):  # so their imports happen once; without a change they pass
        if _run(tests):
            print("The tests fail as they are.")
            return 1
    allowed = {entry["change"]: entry["why"] for entry in yaml.safe_load(ALLOWED.read_text(encoding="utf-8")) or ()}
    start_s, missed = time.monotonic(), set[str]()
    for number, change in enumerate(changes, 1):
        if not is_noticed(change, QUICK) and not is_noticed(change, THOROUGH):
            missed.add(change.name)
            print(f"{number} {'allowed' if change.name in allowed else 'NOT NOTICED'}: {change.name}", flush=True)
        elif number % 10 == 0:
            print(f"{number} of {len(changes)}", flush=True)
    names = {change.name for change in changes}
    modules = {change.module for change in changes}
    stale = [name for name in allowed if name not in missed and (name in names or _is_gone(name, modules))]
    for name in stale:
        print(f"To go from {ALLOWED.name}: {name}")
    new = missed - allowed.keys()
    print(
        f"{len(changes)} changes, {len(missed)} unnoticed, {len(new)} of them new; {time.monotonic() - start_s:.0f} s"
    )
    return int(bool(new or stale))


def _is_gone(name: str, modules: set[str]) -> bool:
    """Return whether a listed change no longer exists, although its module was looked at in whole or in part."""
    module = name.partition(".")[0]
    return module not in MODULES or (module in modules and all(change.name != name for change in changes_of(module)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
