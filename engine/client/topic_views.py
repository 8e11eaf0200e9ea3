"""A view in Spark for each topic with a schema: its final messages, and their fields in one struct, parsed by Spark."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

import pyarrow as pa

from lakemq.tables.storage.delta.catalog import DatabaseTaken, database_name, open_database

from ..namespace.namespace import Namespace
from ..protocol.errors import InvalidConfig, NamespaceError
from ..protocol.parameters import AVRO
from ..protocol.values.topics import Topic
from .schemas.columns import is_json_text
from .schemas.ddl import to_ddl
from .schemas.topic_schema import build_schema_rule, compile_schema

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger(__name__)

DATA = "data"
"""Column of the parsed fields."""


def put_topic_views(spark: SparkSession, namespace: Namespace, topics: Iterable[Topic]) -> dict[str, str]:
    """Let the database `<namespace>_topics` have a view for each topic with a schema, and no others.

    Returns:
        topic -> name of its view. A topic is missing, and logged, if Spark has no type or no parser for its schema.

    Raises:
        NamespaceError: the session has a database of this name that is not the namespace's.
        MissingExtra: the extra `schemas` is not installed.
    """
    tables = database_name(namespace.path)
    database = f"{tables}_topics"
    try:
        open_database(spark, database, namespace.store)
    except DatabaseTaken as taken:
        raise NamespaceError(str(taken)) from None
    with_types = [(topic, ddl) for topic in topics if topic.schema is not None and (ddl := find_ddl(topic))]
    views = name_views({topic.topic: topic.topic_id for topic, _ in with_types})
    for topic, ddl in with_types:
        text = ddl.replace("\\", "\\\\").replace("'", "\\'")
        spark.sql(
            f"CREATE OR REPLACE VIEW `{database}`.`{views[topic.topic]}` AS\n"
            f"SELECT *, from_json(CAST(value AS STRING), '{text}') AS {DATA}\n"
            f"FROM `{tables}`.final_messages WHERE topic = '{topic.topic}' AND coalesce(ttl_ms, 0) >= 0"
        )
        if (topic.high_watermarks > topic.log_starts).any() and not (topic.final_offsets > topic.log_starts).any():
            log.warning(
                "The view of topic %s is empty: none of its messages is final yet. The sequencer's setting"
                " final.interval.ms says when they are; 0: never.",
                topic.topic,
            )
    for name in {view.name for view in spark.catalog.listTables(database)} - {*views.values()}:
        spark.sql(f"DROP VIEW IF EXISTS `{database}`.`{name}`")
    return {topic: f"{database}.{view}" for topic, view in views.items()}


def name_views(topics: Mapping[str, int]) -> dict[str, str]:
    """Return topic -> view: the topic's name in small letters, digits and underscores, as Spark takes them.

    Of topics with equal names, that which needs no change keeps it, or else the oldest; the others end in their ids.

    topics: name -> id.
    """
    plain = {topic: re.sub(r"[^a-z0-9_]", "_", topic.lower()) for topic in topics}
    views: dict[str, str] = {}
    for topic in sorted(topics, key=lambda name: (name != plain[name], topics[name])):
        view = plain[topic]
        while view in views.values():
            view = f"{view}_{topics[topic]}"
        views[topic] = view
    return views


def find_ddl(topic: Topic) -> str | None:
    """Return the DDL by which Spark parses values of a topic; None, with a line in the log, if it cannot."""
    rule = build_schema_rule(topic.schemas)
    reason = "Spark does not parse Avro without a package of its own"
    if rule.type != AVRO:
        try:
            field = compile_schema(rule).field
        except InvalidConfig as error:
            reason = str(error)
        else:
            if pa.types.is_struct(field.type) and field.type.num_fields and not _has_json_text(field):
                return to_ddl(compile_schema(rule).parsed_type)
            reason = "its schema allows what no type of Spark holds"
    log.warning("Topic %s has no view: %s.", topic.topic, reason)
    return None


def _has_json_text(field: pa.Field) -> bool:
    """Return whether a part has no type of its own. `parsed` shows it as JSON, which Spark would write otherwise."""
    return is_json_text(field) or any(_has_json_text(field.type.field(i)) for i in range(field.type.num_fields))
