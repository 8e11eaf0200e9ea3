"""The DDL of a struct, as Spark writes it: its Arrow type, and whether values of one struct can be read as another.

It is parsed by sqlglot, without a JVM.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa

from lakemq.tables.specs.spec import TIME

from ...namespace.extras import needs
from ...protocol.errors import InvalidConfig
from .budgets import refuse_depth
from .columns import MAX_DIGITS

if TYPE_CHECKING:
    from sqlglot import exp


_LEAVES: dict[str, pa.DataType] = {
    "BOOLEAN": pa.bool_(),
    "TINYINT": pa.int8(),
    "SMALLINT": pa.int16(),
    "INT": pa.int32(),
    "BIGINT": pa.int64(),
    "FLOAT": pa.float32(),
    "DOUBLE": pa.float64(),
    "TEXT": pa.string(),
    "BINARY": pa.binary(),
    "DATE": pa.date32(),
    "TIMESTAMP": TIME,
    "TIMESTAMPTZ": TIME,
    "TIMESTAMPLTZ": TIME,
    "TIMESTAMPNTZ": pa.timestamp("us"),
}
"""sqlglot's name of a type -> Arrow's."""

_SPARK_NAMES = {
    **{type: name.lower() for name, type in _LEAVES.items() if name not in ("TEXT", "TIMESTAMPTZ", "TIMESTAMPLTZ")},
    pa.string(): "string",
    pa.timestamp("us"): "timestamp_ntz",
}

_EXPECTED = (
    "the DDL of a struct, such as 'id BIGINT NOT NULL, tags ARRAY<STRING>', of BOOLEAN, TINYINT, SMALLINT, INT, "
    "BIGINT, FLOAT, DOUBLE, DECIMAL(p,s), STRING, BINARY, DATE, TIMESTAMP, TIMESTAMP_NTZ, ARRAY, MAP<STRING,...> "
    "and STRUCT; a field may have NOT NULL and COMMENT. A schema in JSON needs schema.type json or avro"
)


_WITHOUT_ZONE = re.compile(r"\bTIMESTAMP\s+WITHOUT\s+TIME\s+ZONE\b", re.IGNORECASE)
"""Spark's other name of TIMESTAMP_NTZ, which sqlglot reads as a time with a zone."""


def parse_ddl(text: str) -> pa.StructType:
    """Return the struct that the DDL describes. A field with NOT NULL is not nullable.

    Args:
        text: `name TYPE [NOT NULL] [COMMENT '...'], ...`, also within `struct<...>`.

    Raises:
        InvalidConfig: the text is no such DDL.
        MissingExtra: the extra `schemas` is not installed.
    """
    with needs("schemas"):
        import sqlglot
        from sqlglot import exp
        from sqlglot.errors import SqlglotError

    stripped = _WITHOUT_ZONE.sub("TIMESTAMP_NTZ", text.strip())
    whole = stripped if stripped.lower().startswith("struct<") else f"struct<{stripped}>"
    try:
        parsed = sqlglot.parse_one(whole, into=exp.DataType, dialect="spark")
        type = _to_arrow(parsed, text)
    except SqlglotError:
        raise _refuse(text) from None
    except RecursionError:
        raise refuse_depth() from None
    if not pa.types.is_struct(type) or not type.num_fields:
        raise _refuse(text)
    return type


def _to_arrow(parsed: exp.Expression | None, text: str) -> pa.DataType:
    name = getattr(getattr(parsed, "this", None), "value", None)
    if parsed is None or not isinstance(name, str):
        raise _refuse(text)
    inner = parsed.expressions
    if name in _LEAVES and not inner:
        return _LEAVES[name]
    if name == "DECIMAL":
        return _to_decimal([str(parameter.this) for parameter in inner], text)
    if name == "ARRAY" and len(inner) == 1:
        return pa.list_(_to_arrow(inner[0], text))
    if name == "MAP" and len(inner) == 2 and pa.types.is_string(_to_arrow(inner[0], text)):
        return pa.map_(pa.string(), _to_arrow(inner[1], text))
    if name == "STRUCT":
        return pa.struct(_to_fields(inner, text))
    raise _refuse(text, name)


def _to_decimal(parameters: list[str], text: str) -> pa.DataType:
    if len(parameters) > 2 or not all(re.fullmatch("[0-9]{1,4}", number) for number in parameters):
        raise _refuse(text, "DECIMAL")
    precision, scale = (*map(int, parameters), *(10, 0)[len(parameters) :])
    if not 1 <= precision <= MAX_DIGITS or scale > precision:
        raise _refuse(text, f"DECIMAL({precision},{scale})")
    return pa.decimal128(precision, scale)


def _to_fields(columns: list[exp.Expression], text: str) -> list[pa.Field]:
    from sqlglot import exp

    if not all(isinstance(column, exp.ColumnDef) for column in columns):
        raise _refuse(text)
    for column in columns:
        _refuse_constraints(column, text)
    return [pa.field(c.name, _to_arrow(c.args.get("kind"), text), not _is_required(c)) for c in columns]


def _is_required(column: exp.Expression) -> bool:
    from sqlglot import exp

    kinds = [constraint.kind for constraint in column.args["constraints"]]
    return any(isinstance(kind, exp.NotNullColumnConstraint) and not kind.args.get("allow_null") for kind in kinds)


def _refuse_constraints(column: exp.Expression, text: str) -> None:
    """Refuse what would have no effect, such as a default."""
    from sqlglot import exp

    for constraint in column.args["constraints"]:
        if not isinstance(constraint.kind, exp.NotNullColumnConstraint | exp.CommentColumnConstraint):
            raise _refuse(text, constraint.sql(dialect="spark"))


def _refuse(text: str, part: str = "") -> InvalidConfig:
    return InvalidConfig("The schema cannot be read as DDL.", found=part or text, expected=_EXPECTED)


def to_ddl(type: pa.DataType) -> str:
    """Return an Arrow type as Spark writes it."""
    if pa.types.is_struct(type):
        return "struct<" + ",".join(f"`{f.name.replace('`', '``')}`:{to_ddl(f.type)}" for f in type) + ">"
    if pa.types.is_list(type):
        return f"array<{to_ddl(type.value_type)}>"
    if pa.types.is_map(type):
        return f"map<string,{to_ddl(type.item_type)}>"
    if pa.types.is_decimal(type):
        return f"decimal({type.precision},{type.scale})"
    return _SPARK_NAMES[type]


class Obstacle(NamedTuple):
    """The first thing that keeps a reader's schema from reading a writer's values.

    place: where it is; written: what the writer's schema allows there; readable: what the reader's schema can read.
    """

    place: str
    written: str
    readable: str


_WHOLE = [pa.int8(), pa.int16(), pa.int32(), pa.int64()]
_WIDER: dict[pa.DataType, tuple[pa.DataType, ...]] = {
    **{type: tuple(_WHOLE[nth + 1 :]) for nth, type in enumerate(_WHOLE)},
    pa.float32(): (pa.float64(),),
}
"""Type -> the types that hold all its values."""

_EXACT_IN_DOUBLE = (pa.int8(), pa.int16(), pa.int32())
_EXACT_IN_FLOAT = (pa.int8(), pa.int16())


def find_struct_obstacle(reader: pa.DataType, writer: pa.DataType, place: str = "$") -> Obstacle | None:
    """Return what keeps the reader's type from reading the writer's values; None if it can read all of them.

    Values hold the declared fields only. Readers ignore fields that they do not declare, and a missing field is null.
    """
    if pa.types.is_struct(reader) and pa.types.is_struct(writer):
        return _compare_fields(reader, writer, place)
    if pa.types.is_list(reader) and pa.types.is_list(writer):
        return find_struct_obstacle(reader.value_type, writer.value_type, f"{place}[...]")
    if pa.types.is_map(reader) and pa.types.is_map(writer):
        return find_struct_obstacle(reader.item_type, writer.item_type, f"{place}.*")
    if reader == writer or _holds_all(reader, writer):
        return None
    return Obstacle(place, to_ddl(writer), to_ddl(reader))


def _compare_fields(reader: pa.StructType, writer: pa.StructType, place: str) -> Obstacle | None:
    written = {field.name: field for field in writer}
    for field in reader:
        at, other = f"{place}.{field.name}", written.get(field.name)
        if not field.nullable and (other is None or other.nullable):
            return Obstacle(at, "values without it", f"{to_ddl(field.type)} NOT NULL")
        obstacle = None if other is None else find_struct_obstacle(field.type, other.type, at)
        if obstacle is not None:
            return obstacle
    return None


def _holds_all(reader: pa.DataType, writer: pa.DataType) -> bool:
    if reader in _WIDER.get(writer, ()):
        return True
    if pa.types.is_decimal(reader) and pa.types.is_decimal(writer):
        more_whole = reader.precision - reader.scale >= writer.precision - writer.scale
        return bool(more_whole and reader.scale >= writer.scale)
    exact = {pa.float64(): _EXACT_IN_DOUBLE, pa.float32(): _EXACT_IN_FLOAT}.get(reader, ())
    return writer in exact
