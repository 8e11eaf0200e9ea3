"""A schema as it travels with rows. Executors load this module also where no topic has a schema: it needs nothing."""

from __future__ import annotations

from typing import NamedTuple


class SchemaRule(NamedTuple):
    """A schema as publishers and readers pass it on.

    type: ddl, json or avro; text: the schema; earlier: the Avro schemas under which older values were written.
    """

    type: str
    text: str
    earlier: tuple[str, ...] = ()
