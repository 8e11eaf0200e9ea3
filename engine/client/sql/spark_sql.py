"""Translate Spark's SQL to DuckDB's, so that both engines run the same text."""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar, NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser

from .log_ranges import LogRange, replace_log_views

# sqlglot warns on stderr about statements that it does not translate
logging.getLogger("sqlglot").setLevel(logging.ERROR)


_EXPLAIN_OPTIONS = re.compile(r"ANALYZE\s+|\([^)]*\)\s*", re.IGNORECASE)


class NotSparkSql(ValueError):
    """Spark would refuse the text, or DuckDB cannot express it."""


class NoCounterpart(NotSparkSql):
    """DuckDB has no function that does the same as Spark's."""


_OTHER_MEANING = {
    "from_json": "get_json_object(CAST(value AS STRING), '$.field') reads a field",
    "hash": "Spark's hash gives other numbers than DuckDB's",
}
"""Functions whose name means something else in DuckDB: what to use instead, or how they differ."""

_HAVE_NAMES = (exp.Alias, exp.Aliases, exp.Column, exp.Dot, exp.Star, exp.UDTF, exp.Explode, exp.Inline)
"""Result columns that have a name already, or several."""


class _Spark4(Spark):
    """Spark 4's dialect: a failed cast is an error, a doubled quote is one quote. get_json_object is a macro."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(SparkParser):
        STRICT_CAST = True
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            name: made for name, made in SparkParser.FUNCTIONS.items() if name != "GET_JSON_OBJECT"
        }


class Translation(NamedTuple):
    """A translated text. ranges: the views of the log that it needs."""

    text: str
    ranges: tuple[LogRange, ...] = ()


def translate_to_duckdb(text: str) -> Translation:
    """Translate statements of Spark's SQL to DuckDB's. Raises NotSparkSql.

    Names are quoted, in case they are reserved words. A cast to text becomes the macro as_text, which decodes bytes;
    a length becomes the macro length_of.
    """
    ranges: list[LogRange] = []
    try:
        statements = _parse(text)
        # another statement before it may redefine the names of the views
        narrows = len(statements) == 1 or all(isinstance(statement, exp.Query) for statement in statements)
        translated = ";\n".join(_to_duckdb(statement, ranges if narrows else None) for statement in statements)
    except ParseError as error:
        details = error.errors[0] if error.errors else {}
        at = f" in line {details.get('line')}, column {details.get('col')}" if details.get("line") else ""
        raise NotSparkSql(f"{details.get('description') or 'it cannot be read'}{at}") from None
    except SqlglotError as error:
        raise NotSparkSql(str(error)) from None
    except RecursionError:
        raise NotSparkSql("it is nested too deeply") from None
    return Translation(translated, tuple(ranges))


def _parse(text: str) -> list[exp.Expr]:
    return [statement for statement in sqlglot.parse(text, read=_Spark4) if statement is not None]


def _to_duckdb(statement: exp.Expr, ranges: list[LogRange] | None) -> str:
    if isinstance(statement, exp.Command):
        return _translate_command(statement, ranges)
    if isinstance(statement, exp.Query):
        _name_columns(statement)
        if ranges is not None:
            replace_log_views(statement, ranges)
    return statement.transform(_replace_by_macro).sql("duckdb", identify=True, unsupported_level=ErrorLevel.RAISE)


def _name_columns(query: exp.Query) -> None:
    """Name unnamed result columns by their text in Spark's SQL: count(*), not count_star()."""
    for column in query.selects:
        if not isinstance(column, _HAVE_NAMES):
            name = column.sql(_Spark4, normalize_functions="lower")
            column.replace(exp.alias_(column.copy(), name, quoted=True))


def _translate_command(command: exp.Command, ranges: list[LogRange] | None) -> str:
    """Translate SHOW, which is the same in both, and EXPLAIN, which holds a statement and perhaps DuckDB's options."""
    rest = command.text("expression").strip()
    if command.name.upper() != "EXPLAIN":
        return f"{command.name} {rest}"
    options = _EXPLAIN_OPTIONS.match(rest)
    how = options.group() if options else ""
    return f"{command.name} {how}{';'.join(_to_duckdb(statement, ranges) for statement in _parse(rest[len(how) :]))}"


def _function_name(node: Any) -> str:
    """Return Spark's name of a function in lower case; empty if the node is not a function."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _replace_by_macro(node: exp.Expr) -> Any:
    """Replace a node that treats bytes differently in DuckDB by a macro, which checks the type."""
    if isinstance(node, exp.Cast) and node.to.is_type(exp.DataType.Type.TEXT):
        return exp.Anonymous(this="as_text", expressions=[node.this])
    if isinstance(node, exp.Length):
        return exp.Anonymous(this="length_of", expressions=[node.this])
    name = _function_name(node)
    if name in _OTHER_MEANING:
        raise NoCounterpart(f"DuckDB has no counterpart of Spark's {name}: {_OTHER_MEANING[name]}.")
    return node
