"""A change of a topic's settings, checked for its schema before the sequencer decides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...protocol.parameters import TOPIC
from ...protocol.values.schemas import COMPATIBILITY, SchemaVersion, append_schema, last_version
from .compatibility import check_compatibility
from .value_schema import build_schema_rule, compile_schema


def check_new_schema(config: Mapping[str, Any]) -> None:
    """Check the schema of a topic that is to be created. Raises InvalidConfig, MissingExtra."""
    if versions := append_schema((), config, 0):
        compile_schema(build_schema_rule(versions))


def check_changed_schema(
    topic: str, config: Mapping[str, Any], versions: tuple[SchemaVersion, ...], changes: Mapping[str, Any]
) -> int:
    """Check what a change of settings makes of a topic's schema, and return the version that it was compared with.

    Args:
        topic: its name.
        config: its settings now.
        versions: the versions of its schema now.
        changes: settings to set; None resets one.

    Raises:
        InvalidConfig: the new schema is not valid.
        IncompatibleSchema: the setting schema.compatibility, as it is after the change, does not admit it.
        MissingExtra: the extra `schemas` is not installed.
    """
    changed = {key: value for key, value in {**config, **changes}.items() if value is not None}
    after = append_schema(versions, changed, 0)
    if after != versions:
        rule = build_schema_rule(after)
        compile_schema(rule)
        compatibility = changed.get(COMPATIBILITY, TOPIC[COMPATIBILITY].default)
        check_compatibility(topic, versions, rule, compatibility)
    return last_version(versions)
