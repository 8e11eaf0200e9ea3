"""Compare structs: whether JSON values of one can be read as another."""

from __future__ import annotations

from typing import NamedTuple

import pyarrow as pa

from .ddl import to_ddl


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
