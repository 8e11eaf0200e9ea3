"""The hook: an Airflow connection names a namespace, its settings file and the options of its object store."""

from typing import Any

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.engine.namespace.extras import needs
from lakemq.errors import InvalidConfig
from lakemq.jobs.airflow_provider import CONNECTION_TYPE

with needs("airflow"):
    from airflow.sdk import BaseHook


class LakeMQHook(BaseHook):
    """Connects to the namespace that an Airflow connection names.

    The host is the path or URI of the namespace. The extra may hold `conf` (a settings file), `home` (the folder with
    LakeMQ's jobs, for DAGs that submit them) and `storage_options` (an object whose values are never shown).
    """

    conn_name_attr = "lakemq_conn_id"
    default_conn_name = "lakemq_default"
    conn_type = CONNECTION_TYPE
    hook_name = "LakeMQ"

    def __init__(self, lakemq_conn_id: str = default_conn_name, **more: Any) -> None:
        super().__init__(**more)
        self.lakemq_conn_id = lakemq_conn_id

    def get_conn(self) -> Connection:
        """Connect to the namespace. Close the connection after use. Raises what `lakemq.connect` raises."""
        connection = self.get_connection(self.lakemq_conn_id)
        if not connection.host:
            raise InvalidConfig(
                "The Airflow connection names no namespace.", found=self.lakemq_conn_id, expected="a host"
            )
        extra = connection.extra_dejson
        return lakemq.connect(connection.host, conf=extra.get("conf"), storage_options=extra.get("storage_options"))

    def test_connection(self) -> tuple[bool, str]:
        """Test the connection, as the button in Airflow's UI asks for, and return success and a message."""
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
