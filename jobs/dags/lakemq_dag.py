"""DAGs for a namespace: draining the inbox, stepping, releasing delayed messages, upkeep, an audit, and serving.

Copy this file into Airflow's folder of DAGs. It needs two connections: `lakemq_default` (host: the path of the
namespace; extra: `home`, the folder with LakeMQ's jobs, conf and dist; `conf`, a settings file) and `spark_default`.
All DAGs are paused at first. Unpause `lakemq_serve` or `lakemq_step`, and the others that you need: docs/airflow.md.

Runs may overlap with each other and with other sequencers, and may be retried. After a kill, the next run continues,
and nothing is decided or published twice.
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
    """Make a DAG with one task, which submits a LakeMQ job. at_most: stop and retry the task after this time."""
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


# publishes rows that SQL inserted, and decides waiting requests if no sequencer serves
drain_inbox = lakemq_dag("drain_inbox", "microbatch", "*/5 * * * *")
step = lakemq_dag("step", "step", "* * * * *", "--until-idle", "--wait-ms", "20000", "--unless-led")
release_delayed = lakemq_dag("release_delayed", "release_delayed", "* * * * *")

# The leader does retention, merging of small files and clean-up beside its steps. This job leads for a while every
# night, for namespaces that otherwise have a sequencer only for the time of a step.
upkeep = lakemq_dag("upkeep", "serve", "0 3 * * *", "--for-ms", "900000")

# a broken invariant stays broken, so a retry only repeats the log
audit = lakemq_dag("audit", "audit", "30 3 * * *")

# each run serves for a day, and the next one follows
serve = lakemq_dag("serve", "serve", "@continuous", "--for-ms", "86400000", at_most=None)
