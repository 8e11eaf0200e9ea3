"""Decide whether a topic's schema may become another one."""

from __future__ import annotations

from collections.abc import Sequence

from ...protocol.errors import IncompatibleSchema
from ...protocol.values.schemas import AVRO, DDL, SchemaVersion
from .avro import parse_avro
from .avro_compatibility import find_avro_obstacle, find_misread
from .ddl import parse_ddl
from .ddl_compatibility import Obstacle, find_struct_obstacle
from .json_schema import parse_json_schema
from .json_schema_compatibility import find_json_schema_obstacle
from .schema_rule import SchemaRule


def check_compatibility(topic: str, versions: Sequence[SchemaVersion], new: SchemaRule, compatibility: str) -> None:
    """Check a new schema against the newest version of the topic, and against older ones whose values it may spoil.

    Args:
        topic: its name.
        versions: the versions so far.
        new: the schema that is to be the next one.
        compatibility: backward, forward, full or none.

    Raises:
        IncompatibleSchema: the change is not admitted.
    """
    _check_logical_types(topic, versions, new)
    if not versions or compatibility == "none":
        return
    old = versions[-1]
    if old.type != new.type:
        raise IncompatibleSchema(
            f"The schema of {topic} is of another type, so no message of one can be read under the other.",
            found=f"schema.type={new.type}",
            expected=f"schema.type={old.type}, or schema.compatibility=none",
        )
    if compatibility in ("backward", "full"):
        _check_backward(topic, versions, new)
    if compatibility in ("forward", "full") and (obstacle := _find_obstacle(new.type, old.schema, new.text)):
        raise _refuse(f"Version {old.version} of {topic} cannot read messages of the new schema", obstacle)


def _check_backward(topic: str, versions: Sequence[SchemaVersion], new: SchemaRule) -> None:
    """Refuse a schema that cannot read a version's values, if the newest version can: stored values would become null.

    An older version may have had a field that later ones lack, and that comes back with another type.
    """
    newest = versions[-1]
    for version in reversed(versions):
        if version.type != new.type or not (obstacle := _find_obstacle(new.type, new.text, version.schema)):
            continue
        if version is newest or not _find_obstacle(new.type, newest.schema, version.schema):
            raise _refuse(f"The new schema cannot read messages of version {version.version} of {topic}", obstacle)


def _check_logical_types(topic: str, versions: Sequence[SchemaVersion], new: SchemaRule) -> None:
    """Refuse another logical type of an Avro field, with any compatibility: values would be read wrongly."""
    for version in versions if new.type == AVRO else ():
        if version.type == AVRO and (obstacle := find_misread(parse_avro(new.text), parse_avro(version.schema))):
            text = (
                f"The new schema would misread messages of version {version.version} of {topic}, because it has another"
                f" logical type at {obstacle.place}. Add a field of another name instead."
            )
            raise IncompatibleSchema(text, found=obstacle.readable, expected=obstacle.written)


def _find_obstacle(type: str, reader: str, writer: str) -> Obstacle | None:
    if type == DDL:
        return find_struct_obstacle(parse_ddl(reader), parse_ddl(writer))
    if type == AVRO:
        return find_avro_obstacle(parse_avro(reader), parse_avro(writer))
    return find_json_schema_obstacle(parse_json_schema(reader), parse_json_schema(writer))


def _refuse(text: str, obstacle: Obstacle) -> IncompatibleSchema:
    return IncompatibleSchema(f"{text}, at {obstacle.place}.", found=obstacle.written, expected=obstacle.readable)
