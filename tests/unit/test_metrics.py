"""Metrics: a real scrape says what the command and SQL say, and the dashboard and the alerts name only what it has."""

import json
import re
import socket
import threading
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from unit.busy_namespace import ORDERS, READERS, WORKERS, BusyNamespace, open_busy_namespace
from unit.served import served, wait_for_files

from lakemq.engine.client.connection import Connection
from lakemq.errors import InvalidConfig
from lakemq.jobs.metrics import readers, server
from lakemq.jobs.metrics.readers import FamilyBuilder
from lakemq.jobs.metrics.server import NamespaceCollector, serve_metrics
from lakemq.testing import MovableClock

pytestmark = pytest.mark.slow

CHECKOUT = Path(__file__).parents[2]
MONITORING = CHECKOUT / "conf/monitoring"
ALERTS = yaml.safe_load((MONITORING / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((MONITORING / "grafana-dashboard.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BusyNamespace]:
    with open_busy_namespace(tmp_path_factory.mktemp("metrics")) as namespace:
        yield namespace


@pytest.fixture(scope="module")
def scrape(busy: BusyNamespace) -> Iterator[Callable[[], str]]:
    """A function that scrapes over HTTP, as Prometheus does."""
    with serve_metrics(busy.mq, "127.0.0.1", 0, busy.serving) as port:
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"}
        )

        def read() -> str:
            with urllib.request.urlopen(request, timeout=30) as response:
                assert response.headers["Content-Type"].startswith("application/openmetrics-text")
                return str(response.read().decode())

        yield read


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Return the value of each series; the parser refuses what is not OpenMetrics."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def total(values: dict[Any, float], name: str, **labels: str) -> float:
    matching = [
        value for (series, pairs), value in values.items() if series == name and set(labels.items()) <= set(pairs)
    ]
    assert matching, name
    return sum(matching)


def read_sql(busy: BusyNamespace, query: str) -> Any:
    """Return the only value of the result."""
    (row,) = busy.mq.sql(query, wait_ms=30_000).to_pylist()
    (value,) = row.values()
    return value


def test_a_scrape_says_what_sql_says(busy: BusyNamespace, scrape: Callable[[], str]) -> None:
    values = samples(scrape())
    for name, labels, query in (
        ("lakemq_group_lag", {"group": WORKERS}, f"SELECT lag FROM group_lag WHERE group = '{WORKERS}'"),
        ("lakemq_group_lag", {"group": READERS}, f"SELECT lag FROM group_lag WHERE group = '{READERS}'"),
        ("lakemq_topic_messages", {"topic": ORDERS}, f"SELECT records FROM topic_stats WHERE topic = '{ORDERS}'"),
        ("lakemq_delayed_messages", {"topic": ORDERS}, "SELECT sum(messages) FROM pending_delayed"),
        ("lakemq_transactions_open", {}, "SELECT count(*) FROM open_transactions"),
        ("lakemq_dead_letters", {"group": WORKERS}, "SELECT count(*) FROM dead_lettered"),
        ("lakemq_group_members", {"group": WORKERS}, f"SELECT count(*) FROM group_members WHERE group = '{WORKERS}'"),
    ):
        assert total(values, name, **labels) == read_sql(busy, query) > 0, name


def test_a_scrape_says_what_the_commands_say(busy: BusyNamespace, scrape: Callable[[], str]) -> None:
    values, state = samples(scrape()), busy.mq.state()
    (held,) = {info.unacknowledged for info in busy.mq.groups.all() if info.group == WORKERS}
    assert total(values, "lakemq_group_unacknowledged_messages", group=WORKERS) == held > 0
    assert total(values, "lakemq_leader_epoch") == state.leader_epoch
    assert total(values, "lakemq_leader_info", sequencer=state.leader) == 1
    assert total(values, "lakemq_sequencer_present") == 1
    assert total(values, "lakemq_partition_end_offset", topic=ORDERS) == sum(busy.mq.end_offsets(ORDERS).values())
    assert total(values, "lakemq_group_state", group=WORKERS, lakemq_group_state="Stable") == 1
    assert total(values, "lakemq_group_state", group=WORKERS) == 1
    assert total(values, "lakemq_delayed_due_messages", within_seconds="300") == 0
    assert total(values, "lakemq_delayed_due_messages", within_seconds="3600") == 1
    assert 0 < total(values, "lakemq_oldest_open_transaction_age_seconds") < 600
    assert 0 < total(values, "lakemq_open_transaction_timeout_share") <= 1
    assert 0 < total(values, "lakemq_topic_size_bytes", topic=ORDERS) < 1_000_000
    assert total(values, "lakemq_steps_total") <= busy.mq.state().step
    assert total(values, "lakemq_step_duration_seconds_count") > 5
    assert total(values, "lakemq_letters_decided_total") > 5
    assert total(values, "lakemq_scrape_failed") == 0


# -- names in the dashboard, the alerts and the page ------------------------------------------------------


def test_the_dashboard_and_the_alerts_name_only_metrics_that_exist(scrape: Callable[[], str]) -> None:
    text = scrape()
    names = {name for name, _ in samples(text)} | set(re.findall(r"^# TYPE (\w+)", text, re.MULTILINE))
    alerts = [rule["expr"] for group in ALERTS["groups"] for rule in group["rules"]]
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    queries = [variable["query"]["query"] for variable in DASHBOARD["templating"]["list"] if "datasource" in variable]
    assert len(alerts) >= 10
    assert len(panels) >= 15
    for expression in [*alerts, *panels, *queries]:
        used = set(re.findall(r"\b(?:lakemq|process)_\w+", expression))
        assert used, expression
        assert used <= names, (expression, used - names)
        assert expression.count("(") == expression.count(")"), expression


def test_each_query_of_the_dashboard_reads_the_job_that_is_chosen() -> None:
    job, *others = [variable for variable in DASHBOARD["templating"]["list"] if "datasource" in variable]
    assert job["query"]["query"] == "label_values(lakemq_steps_total, job)"
    assert not job.keys() & {"multi", "includeAll"}, "sums would add up what namespaces have"
    panels = [target["expr"] for panel in DASHBOARD["panels"] for target in panel.get("targets", ())]
    for expression in [*panels, *(variable["query"]["query"] for variable in others)]:
        assert re.findall(r'\b(?:lakemq|process)_\w+\b(?!\{job="\$job"[,}])', expression) == [], expression


def test_the_page_lists_every_metric_and_no_other(scrape: Callable[[], str]) -> None:
    page = (CHECKOUT / "docs/metrics.md").read_text(encoding="utf-8")
    cells = re.findall(r"^\| (`lakemq_[^|]+) \|", page, re.MULTILINE)
    listed = {name for cell in cells for name in re.findall(r"`(lakemq_\w+)`", cell)}
    families = list(text_string_to_metric_families(scrape()))
    suffix = {"counter": "_total", "info": "_info"}
    exposed = {f.name + suffix.get(f.type, "") for f in families if f.name.startswith("lakemq_")}
    assert listed == exposed


# -- what a scrape costs, and what it survives ------------------------------------------------------------


def test_scrapes_within_a_second_share_one_reading(busy: BusyNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    results: list[object] = []
    monkeypatch.setattr(server, "CACHE_S", 60.0)
    shared = NamespaceCollector(busy.mq, busy.mq.observer())
    threads = [threading.Thread(target=lambda: results.append(shared.collect())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    shared.close()
    assert len(results) == 4
    assert all(result is results[0] for result in results)


def test_failing_part_of_a_scrape_hides_no_other(busy: BusyNamespace, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Any:
        raise OSError("the table is gone")

    monkeypatch.setitem(server._FAST_PARTS, "groups", fail)
    monkeypatch.setattr(readers, "measure_sizes", fail)
    broken = NamespaceCollector(busy.mq, busy.mq.observer())
    families = {family.name: family for family in broken.collect()}
    broken.close()
    failed = {sample.labels["part"] for sample in families["lakemq_scrape_failed"].samples if sample.value}
    assert failed == {"groups", "sizes"}
    assert "lakemq_topics" in families
    assert "lakemq_group_lag" not in families


def test_a_port_in_use_is_refused_with_what_to_do(busy: BusyNamespace) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with (
            pytest.raises(InvalidConfig, match="--metrics-port"),
            serve_metrics(busy.mq, "127.0.0.1", taken.getsockname()[1]),
        ):
            pytest.fail("a port that is in use was opened")


def test_a_metric_has_a_bounded_number_of_series() -> None:
    build = FamilyBuilder(max_series=10)
    gauge = build.make("lakemq_topic_messages", (((n,), n) for n in range(25)))
    states = build.states("lakemq_s", "S.", "g", ("a", "b"), ((f"g{n}", "a") for n in range(8)))
    assert len(gauge.samples) == 10
    assert len(states.samples) == 10
    assert build.dropped == {"lakemq_topic_messages": 15, "lakemq_s": 6}


def read_projection(mq: Connection) -> tuple[float, float]:
    """Return how far the tables are behind, in steps and in seconds."""
    with mq.observer().look() as observation:
        families = readers.read_waiting(mq, observation, FamilyBuilder())
        values = {family.name: family.samples[0].value for family in families}
    return values["lakemq_projection_lag_steps"], values["lakemq_projection_age_seconds"]


@pytest.mark.extended
def test_tables_are_as_old_as_the_first_step_that_they_lack_whatever_the_time_without_steps(tmp_path: Path) -> None:
    clock = MovableClock()
    with served(tmp_path, clock) as mq:
        mq.topics.create("a")
        wait_for_files(mq)
        assert read_projection(mq) == (0, 0)
    clock.ahead_ms += 8 * 3_600_000
    with served(tmp_path, clock, **{"project.interval.ms": 3_600_000}) as mq:
        mq.topics.create("b")
        mq.topics.create("c")
        behind, age_s = read_projection(mq)
        assert behind >= 2
        assert age_s < 1_000
        clock.ahead_ms += 1_800_000
        assert read_projection(mq)[1] >= 1_800
