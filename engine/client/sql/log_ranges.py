"""Read only the files that can hold the offsets which a statement asks for.

A view of the log joins segments to the rows of all files. No engine infers from an offset which files can hold it. So
this turns the comparisons in WHERE into a condition on segments. It redirects a reference to a view of the log that
stands alone in its FROM to a schema of its own, whose view reads only the files that the condition selects. The WHERE
clause itself stays unchanged, and a reference that is not understood reads all files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlglot import exp

from lakemq.tables import views

_SAME_IN_SEGMENTS = ("topic", "partition")
_LITERAL = (exp.Literal, exp.Neg, exp.Paren, exp.Add, exp.Sub, exp.Mul)
_MIRRORED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
_FIRST, _LAST = "base_offset", "last_offset"
# With more values in an IN, the condition costs more than it saves, and is nested deeper than DuckDB allows.
_MAX_IN_VALUES = 100


class LogRange(NamedTuple):
    """A redirected reference to a view of the log, now `schema`.`view`.

    condition: DuckDB's SQL over `segments`, in parentheses.
    """

    schema: str
    view: str
    condition: str


def replace_log_views(statement: exp.Expr, ranges: list[LogRange]) -> None:
    """Redirect the references of a query that ask for a part of the log, and add them to `ranges`."""
    if any(cte.alias.lower() in views._LOG_VIEWS for cte in statement.find_all(exp.CTE)):
        return
    for select in list(statement.find_all(exp.Select)):
        table = _find_only_source(select)
        if table is None:
            continue
        conditions = list(_yield_segment_conditions(select.args["where"].this, table.alias_or_name.lower()))
        if not conditions:
            continue
        schema = f"range {len(ranges) + 1}"
        condition = exp.paren(exp.and_(*conditions)).sql("duckdb", identify=True)
        ranges.append(LogRange(schema, table.name.lower(), condition))
        table.set("db", exp.to_identifier(schema, quoted=True))


def _find_only_source(select: exp.Select) -> exp.Table | None:
    """Return the view of the log if the query selects from it alone; None otherwise."""
    source, where = select.args.get("from_"), select.args.get("where")
    table = source.this if source is not None and where is not None else None
    if not isinstance(table, exp.Table) or table.name.lower() not in views._LOG_VIEWS:
        return None
    is_plain = all(name in ("this", "alias") for name, value in table.args.items() if value)
    renames = isinstance(table.args.get("alias"), exp.TableAlias) and table.args["alias"].columns
    more = any(select.args.get(name) for name in ("joins", "laterals", "sample"))
    # a column of three parts names the schema, which would change
    names_schema = any(column.args.get("db") for column in select.find_all(exp.Column))
    return table if is_plain and not renames and not more and not names_schema else None


def _yield_segment_conditions(part: exp.Expr, source: str) -> Iterator[exp.Expr]:
    """Yield a condition on segments for each part of WHERE that compares a column with literals."""
    part = part.unnest()
    if isinstance(part, exp.And):
        for operand in part.flatten():
            yield from _yield_segment_conditions(operand, source)
    elif (condition := _build_segment_condition(part, source)) is not None:
        yield condition


def _build_segment_condition(part: exp.Expr, source: str) -> exp.Expr | None:
    if isinstance(part, exp.Between):
        low, high = part.args["low"], part.args["high"]
        bounds = [exp.GTE(this=part.this, expression=low), exp.LTE(this=part.this, expression=high)]
        conditions = [_build_segment_condition(bound, source) for bound in bounds]
        return exp.and_(*conditions) if None not in conditions and not part.args.get("symmetric") else None
    if isinstance(part, exp.In):
        if not 0 < len(part.expressions) <= _MAX_IN_VALUES:
            return None
        conditions = [
            _build_segment_condition(exp.EQ(this=part.this, expression=value), source) for value in part.expressions
        ]
        return exp.or_(*conditions) if None not in conditions else None
    if type(part) not in _MIRRORED:
        return None
    kind, column, right = type(part), part.this.unnest(), part.expression.unnest()
    if isinstance(right, exp.Column):
        kind, column, right = _MIRRORED[kind], right, column
    name = _find_column_name(column, source)
    if name is None or not all(isinstance(node, _LITERAL) for node in right.walk()):
        return None
    return _widen_to_segment(kind, name, right)


def _find_column_name(node: exp.Expr, source: str) -> str | None:
    if not isinstance(node, exp.Column) or node.table.lower() not in ("", source):
        return None
    name = node.name.lower()
    return name if name in (*_SAME_IN_SEGMENTS, "offset") else None


def _widen_to_segment(kind: type[exp.Expr], name: str, value: exp.Expr) -> exp.Expr:
    """Return the condition that a segment may hold a row for which the comparison is true."""

    def compare(kind: type[exp.Expr], column: str) -> exp.Expr:
        return kind(this=exp.column(column), expression=value.copy())

    if name in _SAME_IN_SEGMENTS:
        return compare(kind, name)
    if kind is exp.EQ:
        return exp.and_(compare(exp.LTE, _FIRST), compare(exp.GTE, _LAST))
    return compare(kind, _LAST if kind in (exp.GT, exp.GTE) else _FIRST)
