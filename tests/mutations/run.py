"""Every comparison and number in the rules of groups, changed one at a time: does a test notice?

    .venv/bin/python tests/mutations/run.py [MODULE[.FUNCTION]]... [--list]

Each change is made to the code of one function, in a forked process, so that no file changes and nothing is imported
again. There the stories run, and, if they notice nothing, the state machines and unit tests. What nothing notices must
be listed in `allowed.yaml`, with the reason why it may be so; a line there that is noticed, or changes nothing that
is there any more, is to go. Ends with 1 where the list and what was found differ.
"""

from __future__ import annotations

import ast
import importlib
import os
import resource
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from types import CodeType, FunctionType
from typing import NamedTuple

import pytest
import yaml
from hypothesis import Phase, settings

CHECKOUT = Path(__file__).parents[2]
ALLOWED = Path(__file__).with_name("allowed.yaml")
RULES = "lakemq.engine.protocol.rules"
MODULES = (
    "groups",
    "reconciling",
    "joining",
    "deliveries",
    "redelivery",
    "offsets",
    "group_operations",
    "draining",
    "deleted_offsets",
    "dead_letters",
)

QUICK = ("tests/golden", "-k", "story")
THOROUGH = (
    "tests/unit/test_group_bounds.py",
    "tests/unit/test_group_history.py",
    "tests/unit/test_redriven_segments.py",
    "tests/stateful/test_groups.py",
    "tests/stateful/test_queues.py",
    "tests/unit/test_protocol_projection.py",
)
MOST_S = 60
"""Of processor time: what takes as long without end is noticed."""

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
    """name: as it stands in the list; function: of the module, whose code it is; code: with the change."""

    name: str
    module: str
    function: str
    code: CodeType


def changes_of(module: str) -> Iterator[Change]:
    """All of a module, in order. What stands outside of functions, and defaults of arguments, are left as they are."""
    path = CHECKOUT / "engine/protocol/rules" / f"{module}.py"
    source = path.read_text(encoding="utf-8")
    lines, seen = source.splitlines(), Counter[str]()
    tree = ast.parse(source)
    for position, function in enumerate(tree.body):
        if not isinstance(function, ast.FunctionDef):
            continue
        for place in range(sum(1 for _ in _changed(function))):
            changed = deepcopy(tree)
            told, line = next(one for at, one in enumerate(_changed(changed.body[position])) if at == place)
            name = f"{module}.{function.name}: {told} in `{lines[line - 1].strip()}`"
            seen[name] += 1
            if seen[name] > 1:
                name += f" ({seen[name]})"
            compiled = compile(changed, str(path), "exec")
            code = next(c for c in compiled.co_consts if isinstance(c, CodeType) and c.co_name == function.name)
            yield Change(name, module, function.name, code)


def _changed(function: ast.AST) -> Iterator[tuple[str, int]]:
    """Make one change after the other, each undone before the next; what it is, and its line."""
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
    """Whether these tests fail, or do not end, with the change."""
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
    chosen = [one for one in arguments if not one.startswith("-")] or MODULES
    wanted = [
        one
        for module in MODULES
        for one in changes_of(module)
        if any(f"{one.module}.{one.function}".startswith(name) for name in chosen)
    ]
    if "--list" in arguments:
        print(*(one.name for one in wanted), sep="\n")
        return 0
    # that something fails is enough
    settings.register_profile("mutations", phases=(Phase.explicit, Phase.generate), database=None)
    settings.load_profile("mutations")
    for tests in (QUICK, THOROUGH):  # what they import is imported once; and without a change they pass
        if _run(tests):
            print("The tests fail as they are.")
            return 1
    allowed = {one["change"]: one["why"] for one in yaml.safe_load(ALLOWED.read_text(encoding="utf-8")) or ()}
    began_s, unnoticed = time.monotonic(), set[str]()
    for number, one in enumerate(wanted, 1):
        if not is_noticed(one, QUICK) and not is_noticed(one, THOROUGH):
            unnoticed.add(one.name)
            print(f"{number} {'allowed' if one.name in allowed else 'NOT NOTICED'}: {one.name}", flush=True)
        elif number % 10 == 0:
            print(f"{number} of {len(wanted)}", flush=True)
    names = {one.name for one in wanted}
    modules = {one.module for one in wanted}
    stale = [name for name in allowed if name not in unnoticed and (name in names or _is_gone(name, modules))]
    for name in stale:
        print(f"To go from {ALLOWED.name}: {name}")
    new = unnoticed - allowed.keys()
    print(
        f"{len(wanted)} changes, {len(unnoticed)} unnoticed, {len(new)} of them new; {time.monotonic() - began_s:.0f} s"
    )
    return int(bool(new or stale))


def _is_gone(name: str, modules: set[str]) -> bool:
    """Whether it changes nothing that is there any more, of a module that was looked at as a whole or in part."""
    module = name.partition(".")[0]
    return module not in MODULES or (module in modules and all(one.name != name for one in changes_of(module)))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
