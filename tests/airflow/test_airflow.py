"""The shipped DAGs and those of docs/airflow.md in a real Airflow, with a real spark-submit on a small namespace."""

from __future__ import annotations

import json
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
from real_airflow import CHECKOUT, Airflow, until_there

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.spark import spark_session

DAGS = {f"lakemq_{name}" for name in ("audit", "drain_inbox", "release_delayed", "serve", "step", "upkeep")}
EVENT_S = 15.0
"""On a machine that does nothing else it takes two or three; Airflow alone has six processes at work."""


def said_last(said: str) -> dict[str, Any]:
    """The last line of the job in the log of its task."""
    lines = re.findall(r'\{"job":.*?\}(?= \[airflow)', said)
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def records(airflow: Airflow, *arguments: str) -> list[dict[str, str]]:
    said = airflow.run(*arguments, "--output", "json").stdout
    # warnings come before it
    return json.loads(next(line for line in said.splitlines() if line.startswith("[")))  # type: ignore[no-any-return]


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (CHECKOUT / "docs/airflow.md").read_text(), re.DOTALL | re.MULTILINE)


def test_airflow_imports_the_dags_and_finds_the_provider(airflow: Airflow) -> None:
    assert records(airflow, "dags", "list-import-errors", "--local") == []
    assert {one["dag_id"] for one in records(airflow, "dags", "list", "--local")} == DAGS
    hooks = {one["connection_type"]: one for one in records(airflow, "providers", "hooks")}
    assert hooks["lakemq"]["conn_id_attribute_name"] == "lakemq_conn_id"
    assert "lakemq.jobs.airflow_provider.queues.LakeMQMessageQueueProvider" in airflow.run("providers", "queues").stdout


def test_a_step_decides_what_waits_and_is_harmless_where_another_leads(airflow: Airflow, mq: Connection) -> None:
    with ThreadPoolExecutor() as pool:
        made = pool.submit(mq.topics.create, "t", partitions=2)
        state, said = airflow.test_dag("lakemq_step")
        assert state == "success", said[-3000:]
        made.result()
    assert said_last(said)["letters"] >= 1
    assert mq.topics.describe("t").partitions == 2
    with mq.serving():
        while not mq.state().leader:
            time.sleep(0.05)
        state, said = airflow.test_dag("lakemq_step")
    assert state == "success", said[-3000:]
    assert said_last(said)["letters"] == 0


def test_a_job_that_fails_fails_its_task(airflow: Airflow) -> None:
    extra = {"home": str(airflow.home / "lakemq"), "conf": str(airflow.home / "lakemq.yaml")}
    nowhere = {"conn_type": "lakemq", "host": str(airflow.home / "nowhere"), "extra": extra}
    state, said = airflow.test_dag("lakemq_release_delayed", AIRFLOW_CONN_LAKEMQ_DEFAULT=json.dumps(nowhere))
    assert state == "failed"
    assert said_last(said)["exit_code"] == 3
    assert said_last(said)["error"] == "NOT_A_NAMESPACE"


def test_an_audit_fails_its_task_where_something_is_broken(airflow: Airflow, mq: Connection) -> None:
    with mq.serving():
        mq.topics.create("audited")
        mq.publish("audited", pa.table({"value": ["v"]}))
    copy = airflow.home / "broken"
    shutil.copytree(airflow.path, copy)
    for file in (copy / "messages").glob("*.parquet"):
        file.unlink()
    extra = {"home": str(airflow.home / "lakemq"), "conf": str(airflow.home / "lakemq.yaml")}
    broken = {"conn_type": "lakemq", "host": str(copy), "extra": extra}
    state, said = airflow.test_dag("lakemq_audit", AIRFLOW_CONN_LAKEMQ_DEFAULT=json.dumps(broken))
    assert state == "failed"
    assert said_last(said)["error"] == "TABLE_DAMAGED"


def test_two_runs_that_drain_the_inbox_at_once_publish_each_row_once(airflow: Airflow, mq: Connection) -> None:
    spark = spark_session(master="local[1]")
    with lakemq.connect(str(airflow.path), spark=spark) as inserting, inserting.serving():
        inserting.topics.create("u")
        spark.sql("INSERT INTO mq.inbox (topic, value) SELECT 'u', string(id) FROM range(100)")
    spark.stop()
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(airflow.test_dag, "lakemq_drain_inbox") for _ in range(2)]
        ends = [run.result() for run in runs]
    assert [state for state, _ in ends] == ["success", "success"], ends
    assert sum(said_last(said)["inbox_records"] for _, said in ends) == 100
    assert sorted(int(m.value or b"") for m in mq.fetch("u")) == list(range(100))


def test_the_sensor_of_the_docs_is_done_when_messages_wait(airflow: Airflow, mq: Connection) -> None:
    (airflow.home / "dags" / "orders_wait.py").write_text(examples()[1])
    with mq.serving():
        mq.topics.create("orders")
        mq.publish("orders", pa.table({"value": ["1"]}))
    state, said = airflow.test_dag("orders_wait")
    assert state == "success", said[-3000:]


def test_a_message_starts_the_dag_of_the_docs_within_seconds(airflow: Airflow, mq: Connection) -> None:
    """The run is there within seconds; the task, which another process of a busy machine begins, somewhat later."""
    note = airflow.home / "consumed"
    told = f"open({str(note)!r}, 'a').write(f'{{count}}\\n')"
    code = examples()[0].replace("return count", f"{told}\n        return count")
    (airflow.home / "dags" / "invoicing.py").write_text(code)
    said = airflow.home / "standalone.log"
    with mq.serving(), airflow.standing():
        until_there(note)  # what the test before has left
        before = runs_in(said)
        sent_s = time.monotonic()
        mq.publish("orders", pa.table({"value": ["2"]}))
        while runs_in(said) == before:
            assert time.monotonic() - sent_s < 60
            time.sleep(0.05)
        took_s = time.monotonic() - sent_s
        print(f"a run {took_s:.1f} s after its message")
        until_consumed(note, 2)
    assert took_s < EVENT_S


def runs_in(said: Path) -> int:
    """How many runs of the DAG the scheduler has made."""
    return said.read_text().count("Created asset-triggered DagRun for 'invoicing'")


def until_consumed(note: Path, count: int) -> None:
    deadline_s = time.monotonic() + 120
    while sum(map(int, note.read_text().split())) < count:
        assert time.monotonic() < deadline_s
        time.sleep(0.1)
