"""The option parseValues: the schema that gives values their types in a read."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import pyarrow as pa
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.types import StructField

from ..schemas.reading_rule import find_reading_rule
from ..schemas.schema_rule import SchemaRule
from ..schemas.value_schema import PARSED, compile_schema
from .log_offsets import find_logs
from .options import parse_selection_options


class TypedValues(NamedTuple):
    """The schema of a read. field: the column that it adds."""

    rule: SchemaRule
    field: StructField


def find_typed_values(options: Mapping[str, str]) -> TypedValues:
    """Return the newest schema of the topics that the options select.

    Raises:
        InvalidConfig, UnknownTopicOrPartition: an option is not valid.
        InvalidRequest: a topic has no schema, or they have several.
        MissingExtra: the extra `schemas` is not installed.
    """
    location, selection = parse_selection_options(options)
    with location.connect() as mq:
        state = mq.state()
        rule = find_reading_rule(state.topic(name) for name in find_logs(state, selection, "read_uncommitted"))
    # Timestamps without a zone stay so, as a DDL schema may have both.
    schema = pa.schema([(PARSED, compile_schema(rule).parsed_type)])
    return TypedValues(rule, from_arrow_schema(schema, prefer_timestamp_ntz=True).fields[0])
