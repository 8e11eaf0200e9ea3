"""Spark's SQL in DuckDB's words, so that one text asks both."""

from __future__ import annotations

import logging
import re
from typing import Any, ClassVar, NamedTuple

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser

from lakemq.jobs.ranges import Range, narrow

# it says on stderr which statements it passes on as they are
logging.getLogger("sqlglot").setLevel(logging.ERROR)


_EXPLAINS = re.compile(r"ANALYZE\s+|\([^)]*\)\s*", re.IGNORECASE)


class NotSparkSql(ValueError):
    """The text is none that Spark would take, or nothing that DuckDB knows says the same."""


class _Spark4(Spark):
    """As Spark 4 has it: a cast that fails is an error, a quote in a text stands twice. get_json_object is ours."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(SparkParser):
        STRICT_CAST = True
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            name: made for name, made in SparkParser.FUNCTIONS.items() if name != "GET_JSON_OBJECT"
        }


class Translated(NamedTuple):
    """ranges: of the log, which the text takes for views that are to be made."""

    text: str
    ranges: tuple[Range, ...] = ()


def in_duckdbs(text: str) -> Translated:
    """The statements of Spark's SQL as DuckDB says them. Raises NotSparkSql.

    Names are quoted, so that none is a reserved word. A cast to text is the macro as_text, which decodes bytes, and a
    length is length_of.
    """
    ranges: list[Range] = []
    try:
        statements = _parsed(text)
        # behind anything else a name may be another's
        narrows = len(statements) == 1 or all(isinstance(one, exp.Query) for one in statements)
        said = ";\n".join(_said(one, ranges if narrows else None) for one in statements)
    except ParseError as error:
        found = error.errors[0] if error.errors else {}
        at = f" in line {found.get('line')}, column {found.get('col')}" if found.get("line") else ""
        raise NotSparkSql(f"{found.get('description') or 'it cannot be read'}{at}") from None
    except SqlglotError as error:
        raise NotSparkSql(str(error)) from None
    except RecursionError:
        raise NotSparkSql("it is nested too deeply") from None
    return Translated(said, tuple(ranges))


def _parsed(text: str) -> list[exp.Expr]:
    return [one for one in sqlglot.parse(text, read=_Spark4) if one is not None]


def _said(statement: exp.Expr, ranges: list[Range] | None) -> str:
    if isinstance(statement, exp.Command):
        return _command(statement, ranges)
    if ranges is not None and isinstance(statement, exp.Query):
        narrow(statement, ranges)
    return statement.transform(_by_macro).sql("duckdb", identify=True, unsupported_level=ErrorLevel.RAISE)


def _command(command: exp.Command, ranges: list[Range] | None) -> str:
    """SHOW is the same in both; EXPLAIN has a statement in it, and before that maybe DuckDB's options."""
    rest = command.text("expression").strip()
    if command.name.upper() != "EXPLAIN":
        return f"{command.name} {rest}"
    options = _EXPLAINS.match(rest)
    how = options.group() if options else ""
    return f"{command.name} {how}{';'.join(_said(one, ranges) for one in _parsed(rest[len(how) :]))}"


def _by_macro(node: exp.Expr) -> Any:
    """What means another thing for bytes in the two: a macro knows which it is."""
    if isinstance(node, exp.Cast) and node.to.is_type(exp.DataType.Type.TEXT):
        return exp.Anonymous(this="as_text", expressions=[node.this])
    if isinstance(node, exp.Length):
        return exp.Anonymous(this="length_of", expressions=[node.this])
    return node
