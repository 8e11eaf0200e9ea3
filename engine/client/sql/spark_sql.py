"""Translate Spark's SQL to DuckDB's, so that both engines run the same text."""

import logging
import re
from typing import Any, ClassVar

import sqlglot
from sqlglot import exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ErrorLevel, ParseError, SqlglotError
from sqlglot.parsers.spark import SparkParser

# sqlglot warns on stderr about statements that it does not translate
logging.getLogger("sqlglot").setLevel(logging.ERROR)


_EXPLAIN_OPTIONS = re.compile(r"ANALYZE\s+|\([^)]*\)\s*", re.IGNORECASE)


class NotSparkSql(ValueError):
    """Spark would refuse the text, or DuckDB cannot express it."""


class NoCounterpart(NotSparkSql):
    """DuckDB has no function that does the same as Spark's."""


_OTHER_MEANING = {
    "array_distinct": "DuckDB's loses the order",
    "format": "concat makes a text of several values",
    "printf": "concat makes a text of several values",
    "from_json": "get_json_object(CAST(value AS STRING), '$.field') reads a field",
    "hash": "Spark's hash gives other numbers than DuckDB's",
    "months_between": "Spark counts the time of day, too",
}
"""Functions whose name means something else in DuckDB: what to use instead, or how they differ."""

_OTHER_PARTS = {
    **dict.fromkeys(("dow", "dayofweek"), "dayofweek(t) is a number from 1, Sunday, to 7"),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), "second(t) is the whole seconds"),
}
"""Parts of a time for which `extract` and `date_part` return other numbers in DuckDB: what to use instead."""

_MACROS: dict[str, str] = {
    "LENGTH": "length_of",
    "UNIX_MILLIS": "unix_millis",
    "UNIX_SECONDS": "unix_seconds",
    "DAY_OF_WEEK": "day_of_week",
    "WEEKDAY": "day_from_monday",
}
"""Macros of one argument, by the functions that return something else in DuckDB."""

_HAVE_NAMES = (exp.Alias, exp.Aliases, exp.Column, exp.Dot, exp.Star, exp.UDTF, exp.Explode, exp.Inline)
"""Result columns that have a name already, or several."""


_NUMBERS = (exp.Avg, exp.Binary, exp.Count, exp.CountIf, exp.Round, exp.Stddev, exp.Sum, exp.Variance)
"""Expressions over aggregates that are numbers, whatever they are computed from."""

_LATE = "compute the aggregate or window function in a subquery, with a name"


class _Spark4(Spark):
    """Spark 4's dialect: a failed cast is an error, a doubled quote is one quote. get_json_object is a macro."""

    class Tokenizer(Spark.Tokenizer):
        STRING_ESCAPES: ClassVar[list[str]] = ["\\", "'", '"']

    class Parser(SparkParser):
        STRICT_CAST = True
        FUNCTIONS: ClassVar[dict[str, Any]] = {
            name: made for name, made in SparkParser.FUNCTIONS.items() if name != "GET_JSON_OBJECT"
        }


def translate_to_duckdb(text: str) -> str:
    """Translate statements of Spark's SQL to DuckDB's. Raises NotSparkSql.

    Names are quoted, in case they are reserved words. What means something else in DuckDB becomes a macro: a cast to
    text becomes `as_text`, which decodes bytes.
    """
    try:
        return ";\n".join(map(_to_duckdb, _parse(text)))
    except ParseError as error:
        details = error.errors[0] if error.errors else {}
        at = f" in line {details.get('line')}, column {details.get('col')}" if details.get("line") else ""
        raise NotSparkSql(f"{details.get('description') or 'it cannot be read'}{at}") from None
    except SqlglotError as error:
        raise NotSparkSql(str(error)) from None
    except RecursionError:
        raise NotSparkSql("it is nested too deeply") from None


def _parse(text: str) -> list[exp.Expr]:
    return [statement for statement in sqlglot.parse(text, read=_Spark4) if statement is not None]


def _to_duckdb(statement: exp.Expr) -> str:
    if isinstance(statement, exp.Command):
        return _translate_command(statement)
    if isinstance(statement, exp.Query):
        _name_columns(statement)
    return _translate(statement).sql("duckdb", identify=True, unsupported_level=ErrorLevel.RAISE)


def _name_columns(query: exp.Query) -> None:
    """Name unnamed result columns by their text in Spark's SQL: count(*), not count_star()."""
    for column in query.selects:
        if not isinstance(column, _HAVE_NAMES):
            name = column.sql(_Spark4, normalize_functions="lower")
            column.replace(exp.alias_(column.copy(), name, quoted=True))


def _translate_command(command: exp.Command) -> str:
    """Translate SHOW, which is the same in both, and EXPLAIN, which holds a statement and perhaps DuckDB's options."""
    rest = command.text("expression").strip()
    if command.name.upper() != "EXPLAIN":
        return f"{command.name} {rest}"
    options = _EXPLAIN_OPTIONS.match(rest)
    how = options.group() if options else ""
    return f"{command.name} {how}{';'.join(map(_to_duckdb, _parse(rest[len(how) :])))}"


def _function_name(node: Any) -> str:
    """Return Spark's name of a function in lower case; empty if the node is not a function."""
    if isinstance(node, exp.Anonymous):
        return node.name.lower()
    return node.sql_name().lower() if isinstance(node, exp.Func) else ""


def _replace_by_macro(node: exp.Expr) -> Any:
    """Replace a node that means something else in DuckDB by a macro. `transform` does not look into the replacement."""
    name = _function_name(node)
    if name in _OTHER_MEANING:
        raise NoCounterpart(f"DuckDB has no counterpart of Spark's {name}: {_OTHER_MEANING[name]}.")
    if isinstance(node, exp.Extract) or name in ("date_part", "datepart"):
        part = (node if isinstance(node, exp.Extract) else node.expressions[0]).name.lower()
        if part in _OTHER_PARTS:
            raise NoCounterpart(f"DuckDB counts the part {part} of a time in another way: {_OTHER_PARTS[part]}.")
    if isinstance(node, exp.Cast):
        return _replace_cast(node)
    if isinstance(node, exp.Substring):
        length = node.args.get("length")
        return _call("substring", node.this, exp.func("from_first", node.args["start"]), *([length] if length else []))
    if isinstance(node, exp.Quantile):
        return _call("quantile_cont", node.this, node.args["quantile"])
    if isinstance(node, exp.Like | exp.ILike) and _needs_escape(node):
        operands = {"this": _translate(node.this), "expression": _translate(node.expression)}
        return exp.Escape(this=type(node)(**{**node.args, **operands}), expression=exp.Literal.string("\\"))
    if isinstance(node, exp.TsOrDsAdd) and node.text("unit").upper() in ("", "DAY"):
        operands = {name: _translate(operand) for name, operand in node.args.items() if isinstance(operand, exp.Expr)}
        return exp.cast(exp.TsOrDsAdd(**operands), exp.DataType.Type.DATE)
    if macro := _MACROS.get(name.upper()):
        if macro == "length_of" and _is_computed_late(node.this):
            raise NoCounterpart(f"DuckDB does not know whether this is bytes or text: {_LATE}.")
        return _call(macro, *(node.expressions if isinstance(node, exp.Anonymous) else [node.this]))
    return node


def _needs_escape(like: exp.Like | exp.ILike) -> bool:
    """Return whether the pattern may have backslashes, which are escapes in Spark unless the query names others."""
    pattern = like.expression
    if isinstance(like.parent, exp.Escape) or isinstance(pattern, exp.Any | exp.All):
        return False
    return not isinstance(pattern, exp.Literal) or "\\" in pattern.name


def _replace_cast(cast: exp.Cast) -> exp.Expr:
    """Replace a cast to text or to a whole number."""
    operand, is_late = cast.this, _is_computed_late(cast.this)
    is_number = is_late and isinstance(operand.unnest(), _NUMBERS)
    if cast.to.is_type(exp.DataType.Type.TEXT) and not is_number:
        if is_late:
            raise NoCounterpart(f"DuckDB does not know whether this is bytes or text: {_LATE}.")
        return _call("as_text", operand)
    if cast.to.is_type(*exp.DataType.SIGNED_INTEGER_TYPES) and (is_number or not is_late):
        return type(cast)(this=_call("trunc" if is_number else "as_whole", operand), to=cast.to.copy())
    return cast


def _is_computed_late(operand: exp.Expr) -> bool:
    """Return whether the operand has an aggregate or a window. DuckDB picks a macro before it knows their types."""
    nodes = operand.walk(prune=lambda node: isinstance(node, exp.Query))
    return any(isinstance(node, exp.AggFunc | exp.Window) for node in nodes)


def _translate(node: exp.Expr) -> exp.Expr:
    return node.transform(_replace_by_macro)


def _call(macro: str, *operands: exp.Expr) -> exp.Anonymous:
    return exp.Anonymous(this=macro, expressions=[_translate(operand) for operand in operands])
