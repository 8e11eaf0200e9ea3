"""A real Prometheus fires each alert for a namespace that is broken in that way, and answers the dashboard.

The bounds of the rules are those that users get. Only their waits (`for`) are left out, and ranges are shorter.
"""

import json
import math
import os
import re
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import promtool
import pyarrow as pa
import pytest
import yaml
from fetched_programs import find_free_port, run_server
from finals import let_readers_move_on
from operating.broken_namespace import DISK_BYTES, mount_disk, unmount_disk
from unit.served import wait_for_files

import lakemq
from lakemq.engine.client.consume.queue_consumer import QueueConsumer
from lakemq.engine.maintenance import final_files, final_table
from lakemq.engine.maintenance.compaction import Compaction
from lakemq.engine.maintenance.final_table import FinalTable
from lakemq.engine.sequencer.serving import Serving
from lakemq.jobs.console.pages.overview import _CHECKS
from lakemq.jobs.doctor.examination import run_check
from lakemq.jobs.doctor.namespace import make_checks
from lakemq.jobs.metrics import readers, server
from lakemq.tables.storage.coordination.leader_locks import StandbySigns
from lakemq.tables.storage.object_stores.files import LocalFiles
from lakemq.testing import MovableClock, serve, wait_until

CHECKOUT = Path(__file__).parents[2]
RULES = yaml.safe_load((CHECKOUT / "conf/monitoring/prometheus-alerts.yaml").read_text(encoding="utf-8"))
DASHBOARD = json.loads((CHECKOUT / "conf/monitoring/grafana-dashboard.json").read_text(encoding="utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
PATIENCE_S = 400
JOB = "lakemq"
pytestmark = pytest.mark.timeout(2 * PATIENCE_S)

ALERTS_OF_CHECKS = {
    "sequencer": {"LakeMQNoSequencer", "LakeMQSequencerSilent"},
    "space": {"LakeMQDiskNearlyFull"},
    "letters": {"LakeMQLettersWait"},
    "groups": {"LakeMQGroupStalled"},
    "losses": {"LakeMQGroupLosesMessages"},
    "delays": {"LakeMQDelayedOverdue"},
}
"""What fires, one or more, while a check of the console's overview finds something."""


@dataclass
class Prometheus:
    """A server that scrapes a namespace each second. fired: the alerts that have fired."""

    address: str
    fired: set[str] = field(default_factory=set)

    def query(self, expression: str) -> list[dict[str, Any]]:
        url = f"{self.address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}"
        with urllib.request.urlopen(url, timeout=60) as response:
            result: list[dict[str, Any]] = json.load(response)["data"]["result"]
        return result

    def read_firing(self) -> set[str]:
        firing = {series["metric"]["alertname"] for series in self.query('ALERTS{alertstate="firing"}')}
        self.fired |= firing
        return firing

    def wait_for(self, *alerts: str) -> None:
        names = {f"LakeMQ{name}" for name in alerts}
        wait_until(lambda: names <= self.read_firing(), f"firing of {sorted(names)}", PATIENCE_S)

    def read_value(self, expression: str) -> float:
        """Return the largest value of an expression; 0 if it has none."""
        return max((float(series["value"][1]) for series in self.query(expression)), default=0)

    def wait_for_value(self, expression: str, least: float) -> None:
        wait_until(lambda: self.read_value(expression) >= least, f"{expression} >= {least}", PATIENCE_S)

    def wait_for_scrapes(self, count: int) -> None:
        """Wait until so many more seconds have a scrape."""
        scraped_at = "timestamp(lakemq_scrape_duration_seconds)"
        self.wait_for_value(scraped_at, self.read_value(scraped_at) + count)


def shorten(rules: Mapping[str, Any]) -> str:
    """Return the rules without waits, and with ranges in which a short test passes."""
    copy = json.loads(json.dumps(rules))
    copy["groups"][0]["interval"] = "1s"
    for rule in copy["groups"][0]["rules"]:
        rule.pop("for", None)
        if "step_duration" in rule["expr"]:
            rule["expr"] = rule["expr"].replace("[5m]", "[5s]")
    return yaml.safe_dump(copy)


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("alerts") / "disk"
    if reason := mount_disk(folder):
        pytest.skip(f"no small disk can be mounted here: {reason}")
    yield folder
    unmount_disk(folder)


@dataclass
class Watched:
    """A namespace whose clock the test moves, and the Prometheus that watches it."""

    mq: lakemq.Connection
    clock: MovableClock
    prometheus: Prometheus
    disk: Path
    serving: Serving
    stack: ExitStack

    def check_findings(self) -> None:
        """Check that an alert fires for each finding of the overview."""
        observer = self.mq.observer()
        checks = make_checks(self.mq, observer)
        wrong = [name for name in _CHECKS if not run_check(name, checks[name]).ok]
        firing = self.prometheus.read_firing()
        assert all(ALERTS_OF_CHECKS[name] & firing for name in wrong), (wrong, firing)


@pytest.fixture(scope="module")
def watched(disk: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Watched]:
    program = Path(os.environ.get(promtool.VARIABLE) or promtool.build()).with_name("prometheus")
    folder, clock, port = tmp_path_factory.mktemp("prometheus"), MovableClock(), find_free_port()
    settings = {"final.interval.ms": 500, "compact.min.files": 3}
    with ExitStack() as stack:
        patch = stack.enter_context(pytest.MonkeyPatch.context())
        patch.setattr(server, "CACHE_S", 0.1)
        patch.setattr(server, "SLOW_EVERY_S", 1.0)
        patch.setattr(server, "SLOW_SHARE", 1.0)
        mq = stack.enter_context(serve(disk / "mq", clock, settings))
        (serving,) = mq._open.serving
        metrics_port = stack.enter_context(server.serve_metrics(mq, "127.0.0.1", 0, serving))
        (folder / "alerts.yaml").write_text(shorten(RULES))
        scrape = {"job_name": JOB, "static_configs": [{"targets": [f"127.0.0.1:{metrics_port}"]}]}
        scraping = {"scrape_interval": "1s", "evaluation_interval": "1s"}
        configuration = {"global": scraping, "rule_files": ["alerts.yaml"], "scrape_configs": [scrape]}
        (folder / "prometheus.yml").write_text(yaml.safe_dump(configuration))
        arguments = [f"--web.listen-address=127.0.0.1:{port}", "--config.file=prometheus.yml", "--log.level=warn"]
        stack.enter_context(run_server([str(program), *arguments], port, folder))
        prometheus = Prometheus(f"http://127.0.0.1:{port}")
        yield Watched(mq, clock, prometheus, disk, serving, stack)


def test_each_alert_has_its_section_and_its_line_in_the_page() -> None:
    page = (CHECKOUT / "docs/metrics.md").read_text(encoding="utf-8")
    listed = dict(re.findall(r"^\| `(LakeMQ\w+)` \|.*\| \[[^]]+\]\(([^)]+)\) \|$", page, re.MULTILINE))
    assert listed.keys() == ALERTS.keys()
    for name, rule in ALERTS.items():
        runbook = rule["annotations"]["runbook_url"].replace(".html#", ".md#")
        assert listed[name] in (runbook, f"#{runbook.partition('#')[2]}"), name
        path, _, anchor = runbook.partition("#")
        headings = re.findall(r"^#+ (.+)$", (CHECKOUT / "docs" / path).read_text(encoding="utf-8"), re.MULTILINE)
        assert anchor in {re.sub(r"[^\w -]", "", heading).lower().replace(" ", "-") for heading in headings}, name


def test_a_healthy_namespace_fires_nothing(watched: Watched) -> None:
    watched.mq.topics.create("orders", 2)
    watched.mq.publish("orders", pa.table({"key": ["a", "b"], "value": ["1", "2"]}))
    StandbySigns(watched.mq.namespace.files).put("spare", 1)
    watched.prometheus.wait_for_scrapes(1)
    watched.prometheus.wait_for_scrapes(3)
    firing = watched.prometheus.read_firing() - {"LakeMQStepsSlow"}  # it may be slow here: no `for`, and 5 s for 5 min
    assert firing == set()
    watched.check_findings()


def test_what_clients_do_wrong_fires_alerts(watched: Watched) -> None:
    mq, prometheus = watched.mq, watched.prometheus
    StandbySigns(mq.namespace.files).forget("spare")
    mq.topics.create("exports", 1)
    mq.topics.create("mails", 1)
    with mq.consumer("readers", assign=["orders"]) as reader:
        reader.commit({("orders", 0): 0, ("orders", 1): 0})
    member = watched.stack.enter_context(mq.consumer("mailer", topics=["mails"], protocol="queue"))
    assert isinstance(member, QueueConsumer)
    mq.publish("mails", pa.table({"value": ["not a mail", "to ann"]}))
    messages: list[Any] = []
    while not messages:  # until the test's timeout
        messages += member.poll(timeout_ms=500)
    member.reject(messages[:1], error="no recipient")
    producer: Any = watched.stack.enter_context(mq.producer("exporter", transaction_timeout_ms=900_000))
    producer.begin_transaction()
    producer.send("exports", "row 1").result()
    follower = watched.stack.enter_context(mq.consumer("held", topics=["exports"]))
    wait_until(lambda: follower.poll(timeout_ms=100) is not None and follower.assignment(), "partition of the reader")
    mq.publish("orders", pa.table({"value": ["x", None], "partition": [0, 7]}))
    mq.delayed.schedule("orders", "tomorrow", delay_ms=86_400_000)
    numbers = range(10_001)
    rows = pa.table({"key": [f"c{n % 97}" for n in numbers], "value": [f"order {n}" for n in numbers]})
    mq.publish("orders", rows)
    prometheus.wait_for_scrapes(2)
    mq.publish("orders", rows)
    mq.topics.delete_records("orders", {0: 1})
    watched.clock.advance(minutes=8)
    follower.poll(timeout_ms=100)
    prometheus.wait_for(
        "NoStandby", "DeadLetters", "TransactionOpenLong", "ReadersHeldUp", "GroupStalled", "GroupWithoutMembers"
    )
    prometheus.wait_for("RowsRejected", "GroupLagGrows", "GroupLosesMessages")
    watched.check_findings()


def list_panels() -> Iterator[tuple[str, str]]:
    """Yield the title and the expression of each query of the dashboard, for all processes and topics of the job."""
    for panel in DASHBOARD["panels"]:
        for target in panel.get("targets", ()):
            expression = target["expr"].replace("$__rate_interval", "15s")
            yield panel["title"], re.sub(r"\$(instance|topic)", ".+", expression.replace("$job", JOB))


def test_each_panel_of_the_dashboard_has_a_value(watched: Watched) -> None:
    for title, expression in list_panels():

        def has_value(expression: str = expression) -> bool:
            result = watched.prometheus.query(expression)
            return any(not math.isnan(float(series["value"][1])) for series in result)

        wait_until(has_value, f"value of the panel {title!r}: {expression}", PATIENCE_S)


def test_missing_file_of_final_messages_fires_an_alert(watched: Watched) -> None:
    mq, find_file = watched.mq, final_table._find_file
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(final_table, "_find_file", lambda fs, f: None if f.topic == "lost" else find_file(fs, f))
        for topic in ("lost", "found"):
            mq.topics.create(topic, 1)
        mq.publish("lost", pa.table({"value": ["1"]}))
        wait_until(lambda: mq.state().topic("lost").final_offsets[0] == 1, "final message", PATIENCE_S)

        def is_late() -> bool:
            mq.publish("found", pa.table({"value": ["later"]}))
            let_readers_move_on(mq, watched.clock)
            return watched.prometheus.read_value("lakemq_final_files_missing") > 0

        wait_until(is_late, "reads of later files", PATIENCE_S)
        watched.prometheus.wait_for("FinalFilesMissing")
        watched.check_findings()


def test_maintenance_that_hangs_fires_alerts(watched: Watched) -> None:
    mq, prometheus, clock = watched.mq, watched.prometheus, watched.clock
    goes_on, hangs, refused = threading.Event(), threading.Event(), threading.Event()
    maintain = FinalTable.maintain

    def refuse(*_: object) -> Any:
        refused.set()
        raise OSError("the file cannot be read")

    def hang(self: FinalTable, *arguments: Any) -> bool:
        hangs.set()
        assert goes_on.wait(PATIENCE_S), "the test has failed"
        return maintain(self, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Compaction, "_read", refuse)
        mq.topics.create("newest", 1)
        mq.topics.alter("newest", {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": 0})
        mq.publish("newest", pa.table({"key": ["a", "a"], "value": ["1", "2"]}))

        def is_refused() -> bool:
            let_readers_move_on(mq, clock)  # only files that they read can be cleaned
            mq.publish("newest", pa.table({"key": ["a"], "value": ["3"]}))
            return refused.is_set()

        wait_until(is_refused, "compaction", PATIENCE_S)
        patch.setattr(final_files, "write_final_file", refuse)
        mq.publish("orders", pa.table({"value": ["not final"]}))
        wait_for_files(mq)
        patch.setattr(FinalTable, "maintain", hang)
        mq.topics.create("changed", 1)  # with a change of topics, final tables are maintained at once
        wait_until(hangs.is_set, "maintenance", PATIENCE_S)
        mq.publish("orders", pa.table({"value": ["not in a table"]}))
        clock.ahead_ms += 3_700_000
        prometheus.wait_for("CompactionBehind", "FinalMessagesBehind", "ProjectionBehind")
        watched.check_findings()
        goes_on.set()


def test_store_that_is_slow_full_or_unreadable_fires_alerts(watched: Watched) -> None:
    prometheus, put = watched.prometheus, LocalFiles.put

    def put_slowly(self: LocalFiles, name: str, *arguments: Any, **options: Any) -> str:
        if name.startswith("steps/"):
            time.sleep(1.5)
        return put(self, name, *arguments, **options)

    def fail(*_: object) -> Any:
        raise OSError("the table is gone")

    filler = watched.disk / "filler"
    status = os.statvfs(watched.disk)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(readers, "measure_sizes", fail)
        patch.setattr(LocalFiles, "put", put_slowly)
        filler.write_bytes(b"x" * (status.f_bavail * status.f_frsize - DISK_BYTES // 25))
        try:
            prometheus.wait_for("ScrapeFails", "StepsSlow", "DiskNearlyFull")
            watched.check_findings()
        finally:
            filler.unlink()


def test_leaders_that_change_often_fire_an_alert(watched: Watched) -> None:
    for _ in range(4):
        epoch = watched.prometheus.read_value("lakemq_leader_epoch")
        watched.serving.close()
        watched.serving = watched.mq.serving()
        watched.prometheus.wait_for_value("lakemq_leader_epoch", epoch + 1)
    watched.prometheus.wait_for("LeaderChangesOften")


def test_no_sequencer_fires_alerts(watched: Watched) -> None:
    mq = watched.mq
    mq.delayed.schedule("orders", "later", key="d", delay_ms=3_600_000)
    watched.serving.close()
    watched.clock.ahead_ms += 3_700_000
    asking = threading.Thread(target=lambda: mq.topics.create("waits", 1), daemon=True)
    asking.start()
    watched.prometheus.wait_for("NoSequencer", "SequencerSilent", "LettersWait", "DelayedOverdue")
    watched.check_findings()
    mq.serving()
    asking.join(60)


def test_every_alert_has_fired(watched: Watched, request: pytest.FixtureRequest) -> None:
    tests = {name for name in globals() if name.startswith("test_")}
    if missing := tests - {item.name for item in request.session.items}:
        pytest.skip(f"the alerts of other tests are not fired: {sorted(missing)}")
    assert watched.prometheus.fired == ALERTS.keys()
