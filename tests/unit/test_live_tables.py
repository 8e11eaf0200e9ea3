"""Command, metrics and SQL show the same facts of members and sequencers."""

from collections.abc import Iterator

import pytest
from prometheus_client.samples import Sample
from unit.busy_namespace import WORKERS, BusyNamespace, open_busy_namespace
from unit.served import read_objects

from lakemq.engine.protocol.codec.beat import OverdueMember, encode_overdue_members
from lakemq.errors import InvalidRequest
from lakemq.jobs.metrics.server import NamespaceCollector
from lakemq.tables.specs.groups import LIVE_TABLES
from lakemq.tables.storage.coordination.beats import OverdueNotes
from lakemq.tables.storage.coordination.leader_locks import StandbySigns

pytestmark = pytest.mark.slow

STANDBY = "standby-1"
HEARD_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyNamespace]:
    """The namespace, with a sequencer that stands by, and a member whose heartbeats and polls are late."""
    with open_busy_namespace(tmp_path_factory.mktemp("live")) as namespace:
        files, state = namespace.mq.namespace.files, namespace.mq.state()
        StandbySigns(files).put(STANDBY, 1)
        late = [OverdueMember(WORKERS, namespace.member.member_id, HEARD_MS, None)]
        OverdueNotes(files).put(state.leader_epoch, 9_999_999_999, encode_overdue_members(late))
        yield namespace


def read_samples(busy: BusyNamespace, name: str) -> list[Sample]:
    collector = NamespaceCollector(busy.mq, busy.mq.observer())
    try:
        return [sample for family in collector.collect() for sample in family.samples if sample.name == name]
    finally:
        collector.close()


def test_command_and_sql_agree_on_members_and_sequencers(busy: BusyNamespace) -> None:
    (member,) = busy.mq.sql("SELECT * FROM member_state").to_pylist()
    (shown,) = read_objects(busy.mq.namespace.path, "groups", "members", WORKERS)
    shared = member.keys() - {"last_heartbeat", "last_poll"}
    assert {key: member[key] for key in shared} == {key: shown[key] for key in shared}
    assert int(member["last_heartbeat"].timestamp() * 1000) == shown["late_heartbeat_at_ms"] == HEARD_MS
    assert member["last_poll"] is shown["late_poll_at_ms"] is None
    (status,) = read_objects(busy.mq.namespace.path, "status", "--once")
    rows = busy.mq.sql("SELECT role, sequencer, epoch FROM sequencers").to_pylist()
    assert [(row["role"], row["sequencer"], row["epoch"]) for row in rows] == [
        ("leader", status["leader"], status["leader_epoch"]),
        ("standby", STANDBY, None),
    ]
    assert status["standbys"] == [sample.labels["sequencer"] for sample in read_samples(busy, "lakemq_standby_present")]


@pytest.mark.extended
def test_live_tables_are_as_declared_and_have_no_past(busy: BusyNamespace) -> None:
    for spec in LIVE_TABLES:
        assert busy.mq.sql(f"SELECT * FROM {spec.name}").schema.names == spec.schema.names
        spec.validate(busy.mq.sql(f"SELECT * FROM {spec.name}"))
    with pytest.raises(InvalidRequest, match="group_waits does not exist"):
        busy.mq.sql("SELECT * FROM group_waits", as_of=busy.mq.state().step - 1)
