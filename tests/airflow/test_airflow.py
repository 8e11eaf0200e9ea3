"""The shipped DAGs and those of docs/airflow.md in a real Airflow, with a real spark-submit on a small namespace."""

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from faults.processes import until
from finals import are_all_final
from real_airflow import CHECKOUT, PATIENCE_S, Airflow

import lakemq
from lakemq.engine.client.connection import Connection
from lakemq.tables.specs.messages import INBOX

# Each process of Airflow takes seconds of processor time to start, so a busy machine needs minutes for what follows.
pytestmark = pytest.mark.timeout(6 * PATIENCE_S)

DAGS = {
    f"lakemq_{name}" for name in ("audit", "audit_topic", "drain_inbox", "release_delayed", "serve", "step", "upkeep")
}


def read_last_line(output: str) -> dict[str, Any]:
    """Return the last line of the job in the log of its task."""
    lines = re.findall(r'\{"job":.*?\}(?= \[airflow)', output)
    return json.loads(lines[-1])  # type: ignore[no-any-return]


def examples() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", (CHECKOUT / "docs/airflow.md").read_text(), re.DOTALL | re.MULTILINE)


LIST_WHAT_IT_FINDS = """
import json
from airflow.dag_processing.dagbag import DagBag
from airflow.providers_manager import ProvidersManager
bag, manager = DagBag(), ProvidersManager()
hook = manager.hooks["lakemq"].connection_id_attribute_name
print(json.dumps([bag.import_errors, sorted(bag.dags), hook, list(manager.queue_class_names)]))
"""


def test_airflow_imports_the_dags_and_finds_the_provider(airflow: Airflow) -> None:
    *_, last_line = airflow.run("-c", LIST_WHAT_IT_FINDS, program="python").stdout.splitlines()
    import_errors, dags, hook, queues = json.loads(last_line)
    assert import_errors == {}
    assert {*dags} == DAGS
    assert hook == "lakemq_conn_id"
    assert "lakemq.jobs.airflow_provider.triggers.LakeMQMessageQueueProvider" in queues


def test_step_task_decides_waiting_requests_without_a_jvm(airflow: Airflow, mq: Connection) -> None:
    """Where another sequencer leads it succeeds, too: tests/unit/test_job_entry.py runs it with this option."""
    with ThreadPoolExecutor() as pool:
        creation = pool.submit(mq.topics.create, "t", partitions=2)
        state, output = airflow.test_dag("lakemq_step")
        assert state == "success", output[-3000:]
        creation.result()
    assert read_last_line(output)["letters"] >= 1
    assert mq.topics.describe("t").partitions == 2
    assert 'jobs/step.py" --until-idle --wait-ms 20000 --unless-led' in output
    assert "spark-submit" not in output


def test_a_job_that_fails_fails_its_task(airflow: Airflow, mq: Connection) -> None:
    with mq.serving():
        mq.topics.create("audited")
        mq.publish("audited", pa.table({"value": ["v"]}))
    copy = airflow.home / "broken"
    shutil.copytree(airflow.path, copy)
    for file in (copy / "messages").glob("*.parquet"):
        file.unlink()
    extra = {"home": str(airflow.home / "lakemq"), "conf": str(airflow.home / "lakemq.yaml")}
    broken = {"conn_type": "lakemq", "host": str(copy), "extra": extra}
    state, output = airflow.test_dag("lakemq_audit", AIRFLOW_CONN_LAKEMQ_DEFAULT=json.dumps(broken))
    assert state == "failed"
    assert (read_last_line(output)["error"], read_last_line(output)["exit_code"]) == ("TABLE_DAMAGED", 1)


def test_topic_that_a_trigger_names_is_audited_by_its_suite(airflow: Airflow) -> None:
    (airflow.home / "expectations").mkdir()
    suite = {"expectations": [{"type": "expect_column_values_to_not_be_null", "kwargs": {"column": "key"}}]}
    (airflow.home / "expectations" / "reviewed.json").write_text(json.dumps(suite))
    with lakemq.connect(str(airflow.path), config={"final.interval.ms": 200}) as mq, mq.serving():
        mq.topics.create("reviewed")
        mq.publish("reviewed", pa.table({"key": ["k", None], "value": ["v", "w"]}))
        until(lambda: are_all_final(mq), "final messages")
    state, output = airflow.test_dag("lakemq_audit_topic", "--conf", json.dumps({"topic": "reviewed"}))
    assert state == "failed"
    end = read_last_line(output)
    assert (end["error"], end["exit_code"]) == ("EXPECTATION_FAILED", 5), end
    assert "in 1 of 2" in output


def test_two_runs_that_drain_the_inbox_at_once_publish_each_row_once(airflow: Airflow, mq: Connection) -> None:
    with mq.serving():
        mq.topics.create("u")
    inbox = mq.namespace.store.open(INBOX)
    inbox.append_at(inbox.version, INBOX.table([INBOX.row(topic="u", value=b"%d" % n) for n in range(100)]))
    with ThreadPoolExecutor() as pool:
        runs = [pool.submit(airflow.test_dag, "lakemq_drain_inbox") for _ in range(2)]
        ends = [run.result() for run in runs]
    assert [state for state, _ in ends] == ["success", "success"], ends
    assert sum(read_last_line(output)["inbox_records"] for _, output in ends) == 100
    assert sorted(int(m.value or b"") for m in mq.fetch("u")) == list(range(100))


def test_the_sensor_of_the_docs_is_done_when_messages_wait(airflow: Airflow, mq: Connection) -> None:
    (airflow.home / "dags" / "orders_wait.py").write_text(examples()[1])
    with mq.serving():
        mq.topics.create("orders")
        mq.publish("orders", pa.table({"value": ["1"]}))
    state, output = airflow.test_dag("orders_wait")
    assert state == "success", output[-3000:]


def test_message_starts_dag_of_the_docs(airflow: Airflow, mq: Connection) -> None:
    note = airflow.home / "consumed"
    write_note = f"open({str(note)!r}, 'a').write(f'{{count}}\\n')"
    code = examples()[0].replace("return count", f"{write_note}\n        return count")
    (airflow.home / "dags" / "invoicing.py").write_text(code)
    log = airflow.home / "standalone.log"
    with mq.serving(), airflow.run_standalone():
        until(note.exists, "the message of the test before", PATIENCE_S)
        before = count_runs(log)
        mq.publish("orders", pa.table({"value": ["2"]}))
        until(lambda: count_runs(log) > before, "a run of the DAG", PATIENCE_S)
        until(lambda: sum(map(int, note.read_text().split())) >= 2, "both messages", PATIENCE_S)


def count_runs(log: Path) -> int:
    """Return how many runs of the DAG the scheduler has made."""
    return log.read_text().count("Created asset-triggered DagRun for 'invoicing'")
