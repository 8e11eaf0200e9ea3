"""Publish the rows of a table or a DataFrame in one call: through the gate of the topic, by Arrow or by Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ...namespace.processes.clock import Clock
from ...protocol.errors import InvalidRequest
from ...protocol.values.log import ApplicationVersion
from ...protocol.values.producers import TransactionRef
from ..arguments import parse_text, parse_topic_name, parse_whole_number
from ..quality.gate import Gate, Gates
from ..rows.forms import build_body
from ..rows.input_rows import check_dataframe, select_message_columns, sort_rows, to_arrow_table
from ..rows.message_columns import COLUMNS
from ..rows.publication import Publication
from ..rows.receipts import PublishedRows
from ..tracing.headers import add_trace_to_table
from ..tracing.spans import open_span
from .arrow import ArrowPublisher

if TYPE_CHECKING:
    from .spark import SparkPublisher


@dataclass(frozen=True)
class RowPublisher:
    """Publishes rows that a caller hands over at once.

    arrow, spark: return a publisher. They are functions, because each may refuse to make one now.
    """

    gates: Gates
    clock: Clock
    arrow: Callable[[], ArrowPublisher]
    spark: Callable[[], SparkPublisher]

    def publish(self, publication: Publication, data: Any, columns: Mapping[str, Any], order_by: Any) -> PublishedRows:
        """Publish all rows, together or not at all."""
        gate = self.gates.of(publication.destination)
        if gate is not None:
            publication = replace(publication, expectations=gate.suite.descriptions)
        to = publication.destination
        with open_span("publish", "send", to, {"destination.name": to}, "PRODUCER") as span:
            done = self._publish(publication, data, columns, order_by, gate)
            if span is not None:
                span.set_attribute("messaging.batch.message_count", done.record_count)
            return done

    def _publish(
        self, publication: Publication, data: Any, columns: Mapping[str, Any], order_by: Any, gate: Gate | None
    ) -> PublishedRows:
        rows = to_arrow_table(data)
        if rows is not None:
            sorted_rows = sort_rows(rows, order_by)
            table = add_trace_to_table(select_message_columns(sorted_rows, columns))
            now_ms, to = self.clock.now_ms(), publication.destination
            body, requested = build_body(table, to, now_ms)
            if gate is not None:
                requested = gate.mark_failed_rows(sorted_rows, requested)
            return self.arrow().publish(publication, body, requested)
        check_dataframe("data", data, "a DataFrame (of Spark, pandas, ...) or an Arrow table")
        from .trace_columns import add_trace_to_columns  # pyspark is heavy, and not every client has it

        traced = add_trace_to_columns(data, columns)
        return self.spark().publish(publication, data, traced, order_by, gate)

    def publish_in_transaction(
        self, topic: str, data: Any, transaction: TransactionRef, options: Mapping[str, Any]
    ) -> PublishedRows:
        """Publish rows as a part of a transaction.

        Args:
            options: columns and order_by, as in `mq.publish`.
        """
        named = dict(options)
        order_by = named.pop("order_by", None)
        unknown = named.keys() - set(COLUMNS)
        if unknown:
            raise InvalidRequest("Not an option of a publish inside a transaction.", found=sorted(unknown)[0])
        columns = {name: named.get(name) for name in COLUMNS}
        publication = Publication(parse_topic_name("topic", topic), "fail", transaction=transaction)
        return self.publish(publication, data, columns, order_by)


def parse_application(target: str, app_id: str | None, version: int | None) -> ApplicationVersion | None:
    """Return the application and version that identify a repeat; None if the caller gives none."""
    if (app_id is None) != (version is None):
        raise InvalidRequest("txn_app_id and txn_version go together.", expected="both, or none")
    if app_id is None or version is None:
        return None
    return ApplicationVersion(parse_text("txn_app_id", app_id), parse_whole_number("txn_version", version), target)
