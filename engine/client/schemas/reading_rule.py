"""The schema that reads the messages of topics."""

from __future__ import annotations

from collections.abc import Iterable

from ...protocol.errors import InvalidRequest
from ...protocol.values.schemas import AVRO, SchemaVersion
from ...protocol.values.topics import Topic
from .schema_rule import SchemaRule
from .value_schema import build_schema_rule


def build_missing_schema_error(topic: str) -> InvalidRequest:
    """Return the error of a call that needs the schema of a topic without one."""
    return InvalidRequest(f"Topic {topic} has no schema. Set one with mq.topics.alter({topic!r}, {{'schema': ...}}).")


def find_reading_rule(topics: Iterable[Topic]) -> SchemaRule:
    """Return the newest schema of the topics. Raises InvalidRequest: one has none, or they have several."""
    rules: dict[SchemaRule, str] = {}
    for topic in topics:
        if not topic.schemas:
            raise build_missing_schema_error(topic.topic)
        rules.setdefault(build_schema_rule(topic.schemas), topic.topic)
    if len(rules) != 1:
        raise InvalidRequest(
            "Values are parsed by one schema.",
            found=f"{len(rules)} schemas, of {', '.join(rules.values()) or 'no topic'}",
            expected="topics with the same schema, or one read per topic",
        )
    return next(iter(rules))


def add_schemas(rule: SchemaRule, versions: Iterable[SchemaVersion]) -> SchemaRule:
    """Return the rule, able to read Avro values that were written under these versions, too."""
    if rule.type != AVRO:
        return rule
    texts = [version.schema for version in versions if version.type == AVRO]
    return rule._replace(earlier=tuple(dict.fromkeys(text for text in (*rule.earlier, *texts) if text != rule.text)))
