"""The choice of a parametrized test's cases for `make test`, `.ci/run` and `make test-nightly`."""

from collections.abc import Iterable
from typing import Any

import pytest


def extended_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark all cases `extended` except the quick ones, which stand for the others in `make test`."""
    return _mark_but(pytest.mark.extended, quick, cases)


def nightly_but(in_ci: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark all cases `nightly` except those that stand for the others in `.ci/run`."""
    return _mark_but(pytest.mark.nightly, in_ci, cases)


def _mark_but(mark: pytest.MarkDecorator, chosen: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    cases, chosen = list(cases), list(chosen)
    unknown = [case for case in chosen if case not in cases]
    assert not unknown, f"these are no cases of the test: {unknown}"
    return [case if case in chosen else _add_mark(mark, case) for case in cases]


def _add_mark(mark: pytest.MarkDecorator, case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, mark])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=mark)
