"""DAGs for a namespace: draining the inbox, stepping, releasing delayed messages, upkeep, audits, and serving.

Copy this file into Airflow's folder of DAGs. It needs two connections: `lakemq_default` (host: the path of the
namespace; extra: `home`, the folder with LakeMQ's jobs, conf and dist; `conf`, a settings file) and `spark_default`.
All DAGs are paused at first. Unpause `lakemq_serve` or `lakemq_step`, and the others that you need: docs/airflow.md.

Runs may overlap with each other and with other sequencers, and may be retried. After a kill, the next run continues,
and nothing is decided or published twice.
"""

from datetime import datetime, timedelta

from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator
from airflow.providers.standard.operators.bash import BashOperator
from airflow.sdk import DAG, Param

CONNECTION = "conn.lakemq_default"
HOME = f"{{{{ {CONNECTION}.extra_dejson.home }}}}"
PATH = f"{{{{ {CONNECTION}.host }}}}"
SETTINGS = f"{{{{ {CONNECTION}.extra_dejson.conf }}}}"
HOUR = timedelta(hours=1)


def lakemq_dag(name: str, schedule: str | None, at_most: timedelta | None = HOUR, **params: Param) -> DAG:
    """Make a DAG without tasks. at_most: stop and retry its task after this time. params: what a trigger must say."""
    return DAG(
        dag_id=f"lakemq_{name}",
        schedule=schedule,
        start_date=datetime(2026, 1, 1),
        catchup=False,
        max_active_runs=1,
        is_paused_upon_creation=True,
        params=params,
        tags=["lakemq"],
        default_args={"retries": 3, "retry_delay": timedelta(seconds=30), "execution_timeout": at_most},
    )


def run_job(job: str, *arguments: str) -> BashOperator:
    """Make a task that runs a job in a Python process without a JVM, because the job needs no Spark."""
    return BashOperator(
        task_id=job,
        # bash expands variables once, so no value of the connection is read as code
        bash_command=f'exec "${{PYSPARK_PYTHON:-python3}}" "$LAKEMQ_HOME/jobs/{job}.py" {" ".join(arguments)}',
        env={
            "LAKEMQ_HOME": HOME,
            "LAKEMQ_PATH": PATH,
            "LAKEMQ_CONF": SETTINGS,
            "PYTHONPATH": f"{HOME}/dist/lakemq.zip",
        },
        append_env=True,
    )


def submit_job(job: str, name: str, *arguments: str) -> SparkSubmitOperator:
    """Make a task that submits a job to Spark."""
    return SparkSubmitOperator(
        task_id=job,
        name=f"lakemq-{name}",
        conn_id="spark_default",
        application=f"{HOME}/jobs/{job}.py",
        py_files=f"{HOME}/dist/lakemq.zip",
        properties_file=f"{HOME}/conf/spark-defaults.conf",
        application_args=["--path", PATH, "--conf", SETTINGS, *arguments],
    )


# publishes rows that SQL inserted, and decides waiting requests if no sequencer serves
with lakemq_dag("drain_inbox", "*/5 * * * *") as drain_inbox:
    submit_job("microbatch", "drain_inbox")

with lakemq_dag("step", "* * * * *") as step:
    run_job("step", "--until-idle", "--wait-ms", "20000", "--unless-led")

with lakemq_dag("release_delayed", "* * * * *") as release_delayed:
    run_job("release_delayed")

# The leader does retention, merging of small files and clean-up beside its steps. This job leads for a while every
# night, for namespaces that otherwise have a sequencer only for the time of a step.
with lakemq_dag("upkeep", "0 3 * * *") as upkeep:
    run_job("serve", "--for-ms", "900000")

# a broken invariant stays broken, so a retry only repeats the log
with lakemq_dag("audit", "30 3 * * *") as audit:
    run_job("audit")

# trigger it with a topic, or give it a schedule and the parameter a default
with lakemq_dag("audit_topic", None, topic=Param(type="string", minLength=1)) as audit_topic:
    submit_job("audit", "audit_topic", "--topic", "{{ params.topic }}")

# each run serves for a day, and the next one follows
with lakemq_dag("serve", "@continuous", at_most=None) as serve:
    run_job("serve", "--for-ms", "86400000")
