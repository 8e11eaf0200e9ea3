"""The figures of a group that Airflow gets, and the imports of its files. `make test-airflow` tests Airflow itself."""

import ast
import importlib
from pathlib import Path

import pyarrow as pa
import pytest
from unit.served import new_name, new_topic, send

from lakemq.engine.client.connection import Connection
from lakemq.errors import InvalidRequest, MissingExtra, UnknownTopicOrPartition
from lakemq.jobs import airflow_provider
from lakemq.jobs.airflow_provider.waiting import find_waiting_ends, has_new_ends

pytestmark = pytest.mark.slow

JOBS = Path(airflow_provider.__file__).parents[1]


def abort(mq: Connection, topic: str) -> None:
    with mq.transaction(new_name("x")) as txn:
        txn.publish(topic, pa.table({"value": ["aborted"]}))
        raise ZeroDivisionError


def consume(mq: Connection, group: str, topic: str, protocol: str = "cooperative") -> int:
    """Read all messages that wait, commit them, and return their count."""
    with mq.consumer(group, topics=[topic], protocol=protocol, auto_offset_reset="earliest") as consumer:
        batch = consumer.poll(timeout_ms=5_000)
        if protocol == "queue":
            consumer.ack(batch)
        else:
            consumer.commit(batch)
        return batch.record_count


@pytest.mark.parametrize("protocol", ["cooperative", "queue"])
def test_messages_wait_until_the_group_has_committed_or_acknowledged_them(mq: Connection, protocol: str) -> None:
    group, topic, other = new_name("g"), new_topic(mq), new_topic(mq)
    assert find_waiting_ends(mq, group, [topic, other]) == {}
    send(mq, topic, "1", "2")
    first = find_waiting_ends(mq, group, [topic, other])
    assert first == {topic: {0: 2}}
    assert has_new_ends(first, {})
    assert not has_new_ends(first, first)
    assert consume(mq, group, topic, protocol) == 2
    assert find_waiting_ends(mq, group, [topic, other]) == {}
    send(mq, topic, "3")
    assert find_waiting_ends(mq, group, [topic]) == {topic: {0: 3}}
    assert has_new_ends(find_waiting_ends(mq, group, [topic]), first)
    assert find_waiting_ends(mq, new_name("g"), [topic]) == {topic: {0: 3}}


def test_messages_of_a_topic_created_again_are_new(mq: Connection) -> None:
    group, topic = new_name("g"), new_topic(mq)
    send(mq, topic, "1", "2")
    ends = find_waiting_ends(mq, group, [topic])
    assert consume(mq, group, topic) == 2
    mq.topics.delete(topic)
    mq.topics.create(topic)
    send(mq, topic, "of another topic")
    assert find_waiting_ends(mq, group, [topic]) == {topic: {0: 1}}
    assert has_new_ends(find_waiting_ends(mq, group, [topic]), ends)


def test_markers_and_aborted_and_open_messages_do_not_wait(mq: Connection) -> None:
    group, topic = new_name("g"), new_topic(mq)
    with pytest.raises(ZeroDivisionError):
        abort(mq, topic)
    assert mq.end_offsets(topic)[0] > 0
    assert find_waiting_ends(mq, group, [topic]) == {}
    with mq.transaction(new_name("x")) as txn:
        txn.publish(topic, pa.table({"value": ["open"]}))
        assert find_waiting_ends(mq, group, [topic]) == {}
    assert find_waiting_ends(mq, group, [topic]).keys() == {topic}
    assert consume(mq, group, topic) == 1
    assert find_waiting_ends(mq, group, [topic]) == {}


def test_waiting_for_a_missing_topic_or_for_a_text_is_refused(mq: Connection) -> None:
    with pytest.raises(UnknownTopicOrPartition):
        find_waiting_ends(mq, "g", ["no-such-topic"])
    mq.topics.create("o", exist_ok=True)
    send(mq, "o", "1")
    with pytest.raises(InvalidRequest, match="topics is not valid"):
        find_waiting_ends(mq, "g", "o")


def test_file_of_dags_imports_only_airflow() -> None:
    tree = ast.parse((JOBS / "dags" / "lakemq_dag.py").read_text())
    modules = {n.module or "" for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    modules |= {alias.name for n in ast.walk(tree) if isinstance(n, ast.Import) for alias in n.names}
    assert {module.partition(".")[0] for module in modules} == {"airflow", "datetime"}


def test_modules_of_the_provider_exist_and_ask_for_airflow() -> None:
    info = airflow_provider.get_provider_info()
    import_paths = [connection_type["hook-class-name"] for connection_type in info["connection-types"]] + info["queues"]
    import_paths += [
        f"{module}.x"
        for kind in ("hooks", "sensors", "triggers")
        for entry in info[kind]
        for module in entry["python-modules"]
    ]
    for name in import_paths:
        module = name.rpartition(".")[0]
        assert (JOBS.parent / Path(*module.split(".")[1:])).with_suffix(".py").exists()
        with pytest.raises(MissingExtra, match=r"pip install 'lakemq\[airflow\]'"):
            importlib.import_module(module)
