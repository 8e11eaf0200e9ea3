"""What a statement asks of the log, as a condition on segments: the files that hold none of it need not be read.

A view joins segments to the rows of all files, and no engine concludes from an offset of the view which files it can
be in. Here a reference to a view of the log, alone in its FROM, is given a schema of its own, whose view reads the
files that the condition leaves. What WHERE says stays where it is; a reference that is not understood reads all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from sqlglot import exp

from lakemq.tables.views import log

_SAME = ("topic", "partition")
_LITERAL = (exp.Literal, exp.Neg, exp.Paren, exp.Add, exp.Sub, exp.Mul)
_TURNED: dict[type[exp.Expr], type[exp.Expr]] = {
    exp.EQ: exp.EQ,
    exp.GT: exp.LT,
    exp.GTE: exp.LTE,
    exp.LT: exp.GT,
    exp.LTE: exp.GTE,
}
_FIRST, _LAST = "base_offset", "last_offset"
# More values of an IN are a condition that takes longer than it saves, and deeper than DuckDB allows.
_MANY = 100


class Range(NamedTuple):
    """A reference to `view`, which is now to `schema`.`view`; condition: DuckDB's SQL over `segments`, in brackets."""

    schema: str
    view: str
    condition: str


def narrow(statement: exp.Expr, ranges: list[Range]) -> None:
    """References of a query that ask for a part of the log are renamed, and added to the ranges."""
    if any(cte.alias.lower() in log.VIEWS for cte in statement.find_all(exp.CTE)):
        return
    for select in list(statement.find_all(exp.Select)):
        table = _only_source(select)
        if table is None:
            continue
        conditions = list(_conditions(select.args["where"].this, table.alias_or_name.lower()))
        if not conditions:
            continue
        schema = f"range {len(ranges) + 1}"
        condition = exp.paren(exp.and_(*conditions)).sql("duckdb", identify=True)
        ranges.append(Range(schema, table.name.lower(), condition))
        table.set("db", exp.to_identifier(schema, quoted=True))


def _only_source(select: exp.Select) -> exp.Table | None:
    """The view of the log that it selects from, and nothing else."""
    source, where = select.args.get("from_"), select.args.get("where")
    table = source.this if source is not None and where is not None else None
    if not isinstance(table, exp.Table) or table.name.lower() not in log.VIEWS:
        return None
    is_plain = all(name in ("this", "alias") for name, value in table.args.items() if value)
    renames = isinstance(table.args.get("alias"), exp.TableAlias) and table.args["alias"].columns
    more = any(select.args.get(name) for name in ("joins", "laterals", "sample"))
    # a name of three parts says the schema
    spelt_out = any(column.args.get("db") for column in select.find_all(exp.Column))
    return table if is_plain and not renames and not more and not spelt_out else None


def _conditions(part: exp.Expr, source: str) -> Iterator[exp.Expr]:
    """What each part of WHERE that compares with literals says of segments."""
    part = part.unnest()
    if isinstance(part, exp.And):
        for one in part.flatten():
            yield from _conditions(one, source)
    elif (found := _condition(part, source)) is not None:
        yield found


def _condition(part: exp.Expr, source: str) -> exp.Expr | None:
    if isinstance(part, exp.Between):
        low, high = part.args["low"], part.args["high"]
        bounds = [exp.GTE(this=part.this, expression=low), exp.LTE(this=part.this, expression=high)]
        found = [_condition(bound, source) for bound in bounds]
        return exp.and_(*found) if None not in found and not part.args.get("symmetric") else None
    if isinstance(part, exp.In):
        if not 0 < len(part.expressions) <= _MANY:
            return None
        found = [_condition(exp.EQ(this=part.this, expression=one), source) for one in part.expressions]
        return exp.or_(*found) if None not in found else None
    if type(part) not in _TURNED:
        return None
    kind, left, right = type(part), part.this.unnest(), part.expression.unnest()
    if isinstance(right, exp.Column):
        kind, left, right = _TURNED[kind], right, left
    name = _column(left, source)
    if name is None or not all(isinstance(node, _LITERAL) for node in right.walk()):
        return None
    return _of_segment(kind, name, right)


def _column(node: exp.Expr, source: str) -> str | None:
    if not isinstance(node, exp.Column) or node.table.lower() not in ("", source):
        return None
    name = node.name.lower()
    return name if name in (*_SAME, "offset") else None


def _of_segment(kind: type[exp.Expr], name: str, value: exp.Expr) -> exp.Expr:
    """That a segment may have a row for which it holds."""

    def says(kind: type[exp.Expr], column: str) -> exp.Expr:
        return kind(this=exp.column(column), expression=value.copy())

    if name in _SAME:
        return says(kind, name)
    if kind is exp.EQ:
        return exp.and_(says(exp.LTE, _FIRST), says(exp.GTE, _LAST))
    return says(kind, _LAST if kind in (exp.GT, exp.GTE) else _FIRST)
