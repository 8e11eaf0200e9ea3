"""DAGs for a namespace: draining the inbox, stepping, releasing delayed messages, upkeep, an audit, and serving.

Copy this file into Airflow's folder of DAGs. It needs two connections: `lakemq_default` (host: the path of the
namespace; extra: `home`, the folder with LakeMQ's jobs, conf and dist; `conf`, a settings file) and `spark_default`.
All are paused at first. Unpause `lakemq_serve` or `lakemq_step`, and of the others what is used: docs/airflow.md.

Runs may overlap with each other and with anything else that serves, and may be retried: a job that was killed is taken
up by the next, and nothing is decided or published twice.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

try:
    from airflow.sdk import DAG
except ModuleNotFoundError:  # Airflow 2
    from airflow import DAG

CONNECTION = "conn.lakemq_default"
HOME = f"{{{{ {CONNECTION}.extra_dejson.home }}}}"
NAMESPACE = ["--path", f"{{{{ {CONNECTION}.host }}}}"]
SETTINGS = ["--conf", f"{{{{ {CONNECTION}.extra_dejson.conf }}}}"]
HOUR = timedelta(hours=1)


def lakemq_dag(name: str, job: str, schedule: str, *arguments: str, at_most: timedelta | None = HOUR) -> DAG:
    """A DAG of one task, which submits a job of LakeMQ. at_most: after so long it is stopped, and retried."""
    dag = DAG(
        dag_id=f"lakemq_{name}",
        schedule=schedule,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        tags=["lakemq"],
        default_args={"retries": 3, "retry_delay": timedelta(seconds=30), "execution_timeout": at_most},
    )
    with dag:
        SparkSubmitOperator(
            task_id=job,
            name=f"lakemq-{name}",
            conn_id="spark_default",
            application=f"{HOME}/jobs/{job}.py",
            py_files=f"{HOME}/dist/lakemq.zip",
            properties_file=f"{HOME}/conf/spark-defaults.conf",
            application_args=[*NAMESPACE, *SETTINGS, *arguments],
        )
    return dag


# what SQL inserted is published, and what waits is decided where nobody serves
drain_inbox = lakemq_dag("drain_inbox", "microbatch", "*/5 * * * *")
step = lakemq_dag("step", "step", "* * * * *", "--until-idle", "--wait-ms", "20000", "--unless-led")
release_delayed = lakemq_dag("release_delayed", "release_delayed", "* * * * *")

# Retention, merging of small files and clean-up are the leader's, beside its steps: it leads for a while every night,
# for namespaces that nobody serves for longer than a step takes.
upkeep = lakemq_dag("upkeep", "serve", "0 3 * * *", "--for-ms", "900000")

# what is broken stays so: a retry that fails, too, leaves two logs that say the same
audit = lakemq_dag("audit", "audit", "30 3 * * *")

# a day at a time, one after the other
serve = lakemq_dag("serve", "serve", "@continuous", "--for-ms", "86400000", at_most=None)
