"""Schemas of topics: they check values on publish, type them on fetch, and are compared when they change.

It holds only the rule that travels with rows, because executors load it also where no topic has a schema.
"""

from typing import NamedTuple


class SchemaRule(NamedTuple):
    """A schema as publishers and readers pass it on.

    type: ddl, json or avro; text: the schema; earlier: the Avro schemas under which older values were written.
    """

    type: str
    text: str
    earlier: tuple[str, ...] = ()
