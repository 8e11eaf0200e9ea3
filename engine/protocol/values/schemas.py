"""Schemas of topics: the versions that a topic has had, and which of them is in force."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

SCHEMA, SCHEMA_TYPE, COMPATIBILITY = "schema", "schema.type", "schema.compatibility"
"""Settings of a topic."""

DDL, JSON, AVRO = "ddl", "json", "avro"
SCHEMA_TYPES = (DDL, JSON, AVRO)

MAX_SCHEMA_CHARACTERS = 65_536
"""Longest schema. It is in the state of every client and in each row of the topic, so it must stay small."""

MAX_SCHEMAS = 100
"""Most versions that a topic may have had. All of them are in each row of the topic."""


class SchemaVersion(msgspec.Struct, frozen=True, gc=False):
    """A schema that a topic has, or had. step: the step that decided it."""

    version: int
    type: str
    schema: str
    step: int


def schema_from_config(config: Mapping[str, Any]) -> tuple[str, str] | None:
    """Return type and text of the schema in a topic's settings; None if there is none."""
    text = config.get(SCHEMA, "")
    return (str(config.get(SCHEMA_TYPE, DDL)), str(text)) if text else None


def append_schema(
    versions: tuple[SchemaVersion, ...], config: Mapping[str, Any], step: int
) -> tuple[SchemaVersion, ...]:
    """Return the versions of a topic once it has these settings.

    A schema that differs from the last version becomes the next version. A topic whose schema is removed keeps its
    versions: messages that were written under them are still there.
    """
    schema = schema_from_config(config)
    if schema is None or (versions and schema == (versions[-1].type, versions[-1].schema)):
        return versions
    return (*versions, SchemaVersion(last_version(versions) + 1, *schema, step))


def last_version(versions: tuple[SchemaVersion, ...]) -> int:
    """Return the number of the newest version; 0 if there is none."""
    return versions[-1].version if versions else 0
