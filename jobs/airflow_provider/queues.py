"""The message queue provider that `MessageQueueTrigger(scheme="lakemq", ...)` of Airflow looks up.

It is apart from the trigger, because Airflow 2 loads triggers and has no message queues.
"""

from __future__ import annotations

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.airflow_provider import CONNECTION_TYPE
from lakemq.jobs.airflow_provider.triggers import LakeMQMessagesTrigger

with needs("airflow"):
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider


class LakeMQMessageQueueProvider(BaseMessageQueueProvider):
    """Makes a LakeMQMessagesTrigger, and takes its arguments."""

    scheme = CONNECTION_TYPE

    def trigger_class(self) -> type[LakeMQMessagesTrigger]:
        return LakeMQMessagesTrigger
