"""LakeMQ in Airflow: a connection type with its hook, a trigger and a sensor for messages, and a queue.

It needs only the plain package. Spark and Delta's jars need not be installed where Airflow runs its triggers.
"""

from typing import Any

CONNECTION_TYPE = "lakemq"


def get_provider_info() -> dict[str, Any]:
    """Return the provider's description, which Airflow reads through the entry point `apache_airflow_provider`."""
    here = __name__
    hook = f"{here}.hooks.LakeMQHook"
    return {
        "package-name": "lakemq",
        "name": "LakeMQ",
        "description": "A partitioned, transactional message queue whose every bit of state is a Delta table.",
        "integrations": [{"integration-name": "LakeMQ", "external-doc-url": "", "tags": ["software"]}],
        "connection-types": [{"connection-type": CONNECTION_TYPE, "hook-class-name": hook, "hook-name": "LakeMQ"}],
        "hooks": [{"integration-name": "LakeMQ", "python-modules": [f"{here}.hooks"]}],
        "sensors": [{"integration-name": "LakeMQ", "python-modules": [f"{here}.sensors"]}],
        "triggers": [{"integration-name": "LakeMQ", "python-modules": [f"{here}.triggers"]}],
        "queues": [f"{here}.triggers.LakeMQMessageQueueProvider"],
    }
