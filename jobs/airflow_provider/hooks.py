"""A connection of Airflow's is a namespace: its path, its settings, what the object store needs."""

from __future__ import annotations

from typing import Any

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.extras import needs
from lakemq.errors import InvalidConfig
from lakemq.jobs.airflow_provider import CONNECTION_TYPE

with needs("airflow"):
    try:
        from airflow.sdk import BaseHook
    except ModuleNotFoundError:  # Airflow 2
        from airflow.hooks.base import BaseHook


class LakeMQHook(BaseHook):
    """The host is the path or URI of the namespace. In the extra: conf, a settings file; home, where LakeMQ's jobs are
    for the DAGs that submit them; storage_options, an object, whose values are shown nowhere.
    """

    conn_name_attr = "lakemq_conn_id"
    default_conn_name = "lakemq_default"
    conn_type = CONNECTION_TYPE
    hook_name = "LakeMQ"

    def __init__(self, lakemq_conn_id: str = default_conn_name, **more: Any) -> None:
        super().__init__(**more)
        self.lakemq_conn_id = lakemq_conn_id

    def get_conn(self) -> Connection:
        """A connection to the namespace, to be closed by who asked for it. Raises what `lakemq.connect` does."""
        found = self.get_connection(self.lakemq_conn_id)
        if not found.host:
            raise InvalidConfig("The connection names no namespace.", found=self.lakemq_conn_id, expected="a host")
        extra = found.extra_dejson
        return lakemq.connect(found.host, conf=extra.get("conf"), storage_options=extra.get("storage_options"))

    def test_connection(self) -> tuple[bool, str]:
        """What the button of Airflow's UI asks for."""
        try:
            with self.get_conn() as mq:
                return True, f"{len(mq.topics.list())} topics, as of step {mq.state().step}"
        except Exception as error:
            return False, str(error)

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        return {
            "hidden_fields": ["schema", "login", "password", "port"],
            "relabeling": {"host": "Path or URI"},
            "placeholders": {"extra": '{"conf": "/etc/lakemq.yaml", "home": "/opt/lakemq"}'},
        }
