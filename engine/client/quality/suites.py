"""Suites of Great Expectations as conditions in SQL, for Spark and for DuckDB: a publish looks at its rows once.

A suite is a file in the format of Great Expectations 1, which is not loaded for it. An unsupported expectation is
refused when the suite is loaded: none is skipped silently.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ...namespace.config import parse_yaml
from ...protocol.errors import InvalidConfig
from .expectation_types import Kwargs, build_rule, parse_share
from .suite_rules import ColumnNames, RowRule, TableRule

DEFAULT_MOST_FAILED = 0.5
"""Share of the rows that may fail unless a suite says otherwise. If more fail, the publisher has made a mistake."""

_SEVERITIES = ("critical", "warning", "info")


@dataclass(frozen=True)
class Suite:
    """The expectations for a topic. most_failed: share of rows that may fail; above it all rows are refused."""

    rows: tuple[RowRule, ...] = ()
    table: tuple[TableRule, ...] = ()
    needed: tuple[str, ...] = ()
    most_failed: float = DEFAULT_MOST_FAILED
    descriptions: tuple[str, ...] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "descriptions", tuple(rule.description for rule in self.rows))

    def first_failure_sql(self, names: ColumnNames) -> str:
        """Return SQL for the number of the first row rule that a row fails; null if it fails none."""
        cases = " ".join(f"WHEN {rule.failure_sql(names)} THEN {nth}" for nth, rule in enumerate(self.rows))
        return f"CASE {cases} END" if cases else "CAST(NULL AS INT)"

    def aggregates_sql(self, names: ColumnNames) -> list[str]:
        """Return SQL for aggregates of all rows: per row rule with `mostly` the rows that fail and those that it
        looks at, then one value per table rule.
        """
        conditions = [
            sql for rule in self.rules_with_mostly for sql in (rule.failure_sql(names), rule.applies_sql(names))
        ]
        counts = [f"sum(CASE WHEN {sql} THEN 1 ELSE 0 END)" for sql in conditions]
        return counts + [rule.aggregate_sql(names) for rule in self.table]

    @property
    def rules_with_mostly(self) -> list[RowRule]:
        return [rule for rule in self.rows if rule.mostly is not None]


def load_suite(file: Path) -> Suite:
    """Read a suite. Raises InvalidConfig, which names the file and the mistake."""
    try:
        text = file.read_text(encoding="utf-8")
        if file.suffix == ".json":
            return _parse_suite(json.loads(text, object_pairs_hook=_build_object))
        return _parse_suite(parse_yaml(text))
    except InvalidConfig as error:
        raise InvalidConfig(f"{file}: {error.detail}", found=error.found, expected=error.expected) from None
    except (OSError, ValueError, RecursionError) as error:
        why = " ".join(str(error).split())
        raise InvalidConfig(f"Cannot read {file}: {why}", expected="a suite of Great Expectations") from error


def _build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    values = dict(pairs)
    if len(values) < len(pairs):
        names = [name for name, _ in pairs]
        raise InvalidConfig("A key stands twice.", found=next(name for name in values if names.count(name) > 1))
    return values


def _parse_suite(loaded: Any) -> Suite:
    if not isinstance(loaded, dict) or not isinstance(loaded.get("expectations"), list):
        raise InvalidConfig(
            "The file does not contain a suite.", expected="an object with a list of expectations, of version 1"
        )
    rows: list[RowRule] = []
    table: list[TableRule] = []
    needed: list[str] = []
    for expectation in loaded["expectations"]:
        if not isinstance(expectation, dict) or not isinstance(expectation.get("type"), str):
            raise InvalidConfig("An expectation has no type.", found=expectation)
        kwargs = _parse_object(f"kwargs of {expectation['type']}", expectation.get("kwargs"))
        if not _is_critical(expectation):
            continue  # a warning rejects no row: a checkpoint reports it
        rule = build_rule(expectation["type"], {k: v for k, v in kwargs.items() if v is not None})
        if isinstance(rule, RowRule):
            rows.append(rule)
        elif isinstance(rule, TableRule):
            table.append(rule)
        needed += [rule] if isinstance(rule, str) else rule.columns
    most_failed = _parse_most_failed(_parse_object("meta", loaded.get("meta")))
    return Suite(tuple(rows), tuple(table), tuple(dict.fromkeys(needed)), most_failed)


def _is_critical(expectation: Kwargs) -> bool:
    severity = expectation.get("severity") or "critical"
    if severity not in _SEVERITIES:
        raise InvalidConfig("The severity is unknown.", found=severity, expected=" or ".join(_SEVERITIES))
    return severity == "critical"


def _parse_object(name: str, value: Any) -> Kwargs:
    """Return a mapping; empty for None."""
    if value is not None and not (isinstance(value, dict) and all(isinstance(key, str) for key in value)):
        raise InvalidConfig(f"{name} is not valid.", found=value, expected="an object")
    return value or {}


def _parse_most_failed(meta: Kwargs) -> float:
    settings = _parse_object("meta.lakemq", meta.get("lakemq"))
    if unknown := settings.keys() - {"most_failed"}:
        raise InvalidConfig("meta.lakemq has an unknown key.", found=sorted(unknown)[0], expected="most_failed")
    return parse_share("meta.lakemq.most_failed", settings.get("most_failed", DEFAULT_MOST_FAILED))
