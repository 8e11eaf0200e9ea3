"""The trigger that fires when messages wait for a group, and its queue. The DAG that it starts consumes them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.extras import needs
from lakemq.jobs.airflow_provider import CONNECTION_TYPE
from lakemq.jobs.airflow_provider.hooks import LakeMQHook
from lakemq.jobs.airflow_provider.waiting import Ends, find_waiting_ends, has_new_ends

with needs("airflow"):
    from airflow.providers.common.messaging.providers.base_provider import BaseMessageQueueProvider
    from airflow.triggers.base import BaseEventTrigger, TriggerEvent
    from asgiref.sync import sync_to_async


class LakeMQMessagesTrigger(BaseEventTrigger):
    """Fires when new messages wait for a group, and at its start if some wait already.

    While messages still wait and no new ones come, it fires again every `remind_s`: the run that it started for them
    may have failed. The payload of an event is {group, ends}. `ends` maps topic -> partition -> the offset after the
    last message. The messages themselves are not part of the payload.
    """

    def __init__(
        self,
        *,
        group: str,
        topics: list[str],
        lakemq_conn_id: str = LakeMQHook.default_conn_name,
        poll_interval_s: float = 1.0,
        remind_s: float = 300.0,
    ) -> None:
        super().__init__()
        self.group, self.topics, self.lakemq_conn_id = group, topics, lakemq_conn_id
        self.poll_interval_s, self.remind_s = poll_interval_s, remind_s

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return f"{type(self).__module__}.{type(self).__qualname__}", {
            "group": self.group,
            "topics": self.topics,
            "lakemq_conn_id": self.lakemq_conn_id,
            "poll_interval_s": self.poll_interval_s,
            "remind_s": self.remind_s,
        }

    async def run(self) -> AsyncIterator[TriggerEvent]:
        mq = await sync_to_async(LakeMQHook(self.lakemq_conn_id).get_conn)()
        try:
            async for ends in self._watch(mq):
                yield TriggerEvent({"group": self.group, "ends": ends})
        finally:
            await asyncio.to_thread(mq.close)

    async def _watch(self, mq: Connection) -> AsyncIterator[Ends]:
        loop = asyncio.get_running_loop()
        sent: Ends = {}
        sent_at_s = loop.time()
        while True:
            # in a thread, because it reads files: other triggers share this event loop
            ends = await asyncio.to_thread(find_waiting_ends, mq, self.group, self.topics)
            if ends and (has_new_ends(ends, sent) or loop.time() - sent_at_s >= self.remind_s):
                sent, sent_at_s = ends, loop.time()
                yield ends
            await asyncio.sleep(self.poll_interval_s)


class LakeMQMessageQueueProvider(BaseMessageQueueProvider):
    """Makes a LakeMQMessagesTrigger, and takes its arguments: `MessageQueueTrigger(scheme="lakemq", ...)`."""

    scheme = CONNECTION_TYPE

    def trigger_class(self) -> type[LakeMQMessagesTrigger]:
        return LakeMQMessagesTrigger
