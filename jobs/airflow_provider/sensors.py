"""The sensor for DAGs that wait for messages by themselves: in Airflow 2, or in the middle of a DAG."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.airflow_provider.hooks import LakeMQHook
from lakemq.jobs.airflow_provider.waiting import waiting

with needs("airflow"):
    try:
        from airflow.sdk import BaseSensorOperator, PokeReturnValue
    except ModuleNotFoundError:  # Airflow 2
        from airflow.sensors.base import BaseSensorOperator, PokeReturnValue


class LakeMQMessagesSensor(BaseSensorOperator):
    """Done when messages wait for the group; what LakeMQMessagesTrigger tells is its XCom. It consumes nothing."""

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
            ends = waiting(mq, self.group, self.topics)
        told = {topic: {str(partition): end for partition, end in found.items()} for topic, found in ends.items()}
        return PokeReturnValue(bool(ends), {"group": self.group, "ends": told} if ends else None)
