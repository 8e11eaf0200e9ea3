"""The expectation that an invariant holds: its query, which runs in DuckDB, returns no row.

Great Expectations holds the query's text and shows it in Data Docs beside the rows that it returned. Its own SQL data
sources need a server or SQLAlchemy; here `{batch}` is a relation of the DuckDB that an audit has prepared.

Importing this module imports Great Expectations, which takes seconds: only an audit does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from great_expectations.compatibility import pydantic
from great_expectations.execution_engine import PandasExecutionEngine
from great_expectations.expectations.core.unexpected_rows_expectation import UnexpectedRowsExpectation
from great_expectations.expectations.metadata_types import FailureSeverity
from great_expectations.expectations.metrics.metric_provider import metric_value
from great_expectations.expectations.metrics.query_metrics.query_row_count.unexpected_rows_query_row_count import (
    UnexpectedRowsQueryRowCount,
)
from great_expectations.expectations.metrics.query_metrics.query_table.unexpected_rows_query_table import (
    UnexpectedRowsQueryTable,
)
from great_expectations.render import RenderedStringTemplateContent, RenderedTableContent
from great_expectations.render.components import LegacyDiagnosticRendererType, LegacyRendererType
from great_expectations.render.renderer.renderer import renderer

from .audit import SUBJECTS, Invariant

if TYPE_CHECKING:
    import duckdb


MOST_ROWS = 200
"""Rows of an expectation that are kept and shown. The count covers all rows."""

SUBJECT = "subject"
"""The column of a batch that names the subject; the subject's relation replaces `{batch}`."""

_database: ContextVar[duckdb.DuckDBPyConnection] = ContextVar("lakemq audit database")


@contextmanager
def run_queries_in(database: duckdb.DuckDBPyConnection) -> Iterator[None]:
    """Run the queries of expectations in this DuckDB."""
    token = _database.set(database)
    try:
        yield
    finally:
        _database.reset(token)


def make_expectation(invariant: Invariant) -> Any:
    """Make the expectation of an invariant."""
    return ExpectInvariantToHold(
        unexpected_rows_query=invariant.query.strip(),
        severity=FailureSeverity.WARNING if invariant.is_warning else FailureSeverity.CRITICAL,
        meta={"invariant": invariant.says},
    )


class RowsThatBreakIt(UnexpectedRowsQueryTable):
    """The rows of a query in DuckDB, the first MOST_ROWS of them."""

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(
        cls,
        execution_engine: PandasExecutionEngine,
        metric_domain_kwargs: Mapping[str, Any],
        metric_value_kwargs: Mapping[str, Any],
        metrics: Mapping[str, Any],
        runtime_configuration: Mapping[str, Any],
    ) -> list[dict[str, Any]]:
        result = _database.get().execute(_query(cls, execution_engine, metric_value_kwargs))
        names = [name for name, *_ in result.description or ()]
        return [dict(zip(names, row, strict=True)) for row in result.fetchmany(MOST_ROWS)]


class RowsThatBreakItCount(UnexpectedRowsQueryRowCount):
    """How many rows a query has in DuckDB."""

    @metric_value(engine=PandasExecutionEngine)
    def _pandas(
        cls,
        execution_engine: PandasExecutionEngine,
        metric_domain_kwargs: Mapping[str, Any],
        metric_value_kwargs: Mapping[str, Any],
        metrics: Mapping[str, Any],
        runtime_configuration: Mapping[str, Any],
    ) -> int:
        query = _query(cls, execution_engine, metric_value_kwargs)
        (count,) = _database.get().execute(f"SELECT count(*) FROM ({query}) AS broken").fetchone() or (0,)
        return int(count)


def _query(metric: Any, engine: PandasExecutionEngine, values: Mapping[str, Any]) -> str:
    subject = engine.dataframe[SUBJECT].iloc[0]
    query = metric._get_query_from_metric_value_kwargs(values)
    formatted: str = metric._format_query(query, batch=SUBJECTS[subject])
    return formatted


class ExpectInvariantToHold(UnexpectedRowsExpectation):
    """The query of an invariant returns no row: `unexpected_rows_query` in DuckDB, `meta["invariant"]` in words."""

    @pydantic.validator("unexpected_rows_query")
    def _validate_query(cls, query: str) -> str:
        """Accept queries without `{batch}`, because all relations belong to the audit. GX would warn on stdout."""
        return query

    @classmethod
    @renderer(renderer_type=LegacyRendererType.PRESCRIPTIVE)
    def _prescriptive_renderer(
        cls, configuration: Any = None, result: Any = None, runtime_configuration: Any = None, **_: Any
    ) -> list[Any]:
        """Show the invariant, and its query below."""
        code = {"tag": "pre", "classes": ["border", "p-2", "mt-2"], "styles": {"white-space": "pre-wrap"}}
        return [
            _text("$says", {"says": configuration.meta["invariant"]}, {}),
            _text("$query", {"query": configuration.kwargs["unexpected_rows_query"]}, {"query": code}),
        ]

    @classmethod
    @renderer(renderer_type=LegacyDiagnosticRendererType.UNEXPECTED_TABLE)
    def _diagnostic_unexpected_table_renderer(
        cls, configuration: Any = None, result: Any = None, runtime_configuration: Any = None, **_: Any
    ) -> list[Any] | None:
        """Show the rows that break it."""
        rows = ((result.result or {}).get("details") or {}).get("unexpected_rows") or []
        if not rows:
            return None
        names = list(rows[0])
        return [
            RenderedTableContent(
                content_block_type="table",
                table=[[str(row[name]) for name in names] for row in rows],
                header_row=names,
                styling={"body": {"classes": ["table-bordered", "table-sm", "mt-3"]}},
            )
        ]


def _text(template: str, params: dict[str, str], styling: dict[str, Any]) -> Any:
    return RenderedStringTemplateContent(
        content_block_type="string_template",
        string_template={"template": template, "params": params, "styling": {"params": styling}},
    )
