"""What `MessageQueueTrigger(scheme="lakemq", ...)` of the common messaging provider finds."""

from __future__ import annotations

from lakemq.engine.namespace.extras import needs
from lakemq.jobs.airflow_provider import CONNECTION_TYPE
from lakemq.jobs.airflow_provider.triggers import LakeMQMessagesTrigger

with needs("airflow"):
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider


class LakeMQMessageQueueProvider(BaseMessageQueueProvider):
    """Its arguments are those of LakeMQMessagesTrigger."""

    scheme = CONNECTION_TYPE

    def trigger_class(self) -> type[LakeMQMessagesTrigger]:
        return LakeMQMessagesTrigger
