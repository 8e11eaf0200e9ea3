"""The choice of a parametrized test's cases for `make test`. `make test-all` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def extended_but(quick: Iterable[Any], cases: Iterable[Any]) -> list[Any]:
    """Mark all cases `extended` except the quick ones, which stand for the others in `make test`."""
    cases, quick = list(cases), list(quick)
    unknown = [case for case in quick if case not in cases]
    assert not unknown, f"these are no cases of the test: {unknown}"
    return [case if case in quick else _add_extended_mark(case) for case in cases]


def _add_extended_mark(case: Any) -> Any:
    if isinstance(case, type(pytest.param())):
        return pytest.param(*case.values, id=case.id, marks=[*case.marks, pytest.mark.extended])
    return pytest.param(*(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.extended)
