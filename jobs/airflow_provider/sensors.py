"""A sensor that waits for messages in the middle of a DAG."""

from collections.abc import Sequence
from typing import Any

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.airflow_provider.hooks import LakeMQHook
from lakemq.jobs.airflow_provider.waiting import find_waiting_ends

with needs("airflow"):
    from airflow.sdk import BaseSensorOperator, PokeReturnValue


class LakeMQMessagesSensor(BaseSensorOperator):
    """Succeeds when messages wait for the group. It consumes nothing.

    Its XCom is the payload of LakeMQMessagesTrigger's event.
    """

    template_fields: Sequence[str] = ("group", "topics", "lakemq_conn_id")

    def __init__(
        self,
        *,
        group: str,
        topics: list[str],
        lakemq_conn_id: str = LakeMQHook.default_conn_name,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.group, self.topics, self.lakemq_conn_id = group, topics, lakemq_conn_id

    def poke(self, context: Any) -> PokeReturnValue:
        with LakeMQHook(self.lakemq_conn_id).get_conn() as mq:
            ends = find_waiting_ends(mq, self.group, self.topics)
        payload = {
            topic: {str(partition): end for partition, end in partitions.items()} for topic, partitions in ends.items()
        }
        return PokeReturnValue(bool(ends), {"group": self.group, "ends": payload} if ends else None)
