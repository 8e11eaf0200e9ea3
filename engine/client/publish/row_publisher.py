"""Publish the rows of a table or a DataFrame in one call: through the gate of the topic, by Arrow or by Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from lakemq.tables.specs.applications import APPLICATIONS
from lakemq.tables.storage.delta.store import Store

from ...namespace.namespace import Namespace
from ...namespace.processes.clock import Clock
from ...namespace.store_errors import store_errors
from ...protocol.errors import InvalidRequest, StorageError
from ...protocol.values.log import ApplicationVersion, Published
from ...protocol.values.producers import TransactionRef
from ...protocol.values.state import State
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

    arrow, spark: return a publisher. They are functions, because each may refuse to make one now. read_state: returns
    the state as of the newest step.
    """

    gates: Gates
    namespace: Namespace
    clock: Clock
    arrow: Callable[[], ArrowPublisher]
    spark: Callable[[], SparkPublisher]
    read_state: Callable[[], State]

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
        # Few rows travel in the request, which costs less than the look.
        is_large = rows is None or rows.nbytes > self.namespace.config.number("inline.max.bytes")
        if is_large and publication.application is not None and self._is_repeat(publication.application):
            return PublishedRows.of(Published([], duplicate=True))
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

    def _is_repeat(self, application: ApplicationVersion) -> bool:
        """Return whether the version is known to be published, to save computing. The sequencer decides in any case."""
        try:
            with store_errors():
                last = find_last_version(
                    self.namespace.store, self.read_state(), application.txn_app_id, application.target
                )
        except StorageError:
            return False
        return 0 <= application.txn_version <= last

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


def find_last_version(store: Store, state: State, txn_app_id: str, target: str) -> int:
    """Return the last version that an application has published to a target; -1 if there is none.

    state: as of the newest step, with what came after the tables were loaded. It is read before the table, so that no
    version is in neither.
    """
    recent = state.applications.get((txn_app_id, target))
    is_of_application = (pc.field("txn_app_id") == txn_app_id) & (pc.field("target") == target)
    versions = store.open(APPLICATIONS).read(["version"], where=is_of_application).column("version")
    return max([-1, *versions.to_pylist(), *([recent.version] if recent else [])])
