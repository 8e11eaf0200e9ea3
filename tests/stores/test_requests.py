"""Requests to an object store: those of a projection, and those of a reader that follows."""

from __future__ import annotations

import re
import time
import uuid
from collections import Counter
from pathlib import Path

from s3_server import S3Server
from store_proxy import run_proxy
from stores.test_processes import CONFIG, TOPIC, Children, children, until

import lakemq
from lakemq.tables.specs.registry import TABLES

__all__ = ["children"]  # a fixture

_TABLE_REQUEST = re.compile(rf"(\S+) \S*[/=]({'|'.join(spec.name for spec in TABLES)})/(\S*)")


def count_table_requests(log: Path) -> Counter[tuple[str, str]]:
    """Return how many requests of each method went to each table, by (table, method).

    Lists are left out: the removal of old entries makes some every minute.
    """
    counts: Counter[tuple[str, str]] = Counter()
    for line in log.read_text().replace("%2F", "/").splitlines():
        if "list-type=" not in line and (request := _TABLE_REQUEST.match(line)):
            counts[request[2], request[1]] += 1
    return counts


def test_a_projection_takes_three_requests_per_table(s3: S3Server, children: Children, tmp_path: Path) -> None:
    """It puts the rows and the log entry, and looks at the entry before, however many commits there were."""
    log, path = tmp_path / "requests", s3.path(f"{uuid.uuid4().hex}/mq")
    with (
        lakemq.connect(path, storage_options=s3.options, create=True) as mq,
        run_proxy(s3.url, "--log", str(log)) as url,
    ):
        children.serve(path, s3.at(url).options, CONFIG + "project.interval.ms: 500\n")
        mq.topics.create(TOPIC)

        def send() -> int:
            with mq.producer() as producer:
                step = producer.send(TOPIC, value="x").result(60).offset
            until(lambda: mq.sql("SELECT count(*) AS n FROM log").column("n")[0].as_py() == step + 1, "it is projected")
            return step

        for _ in range(5):
            send()
        time.sleep(1)
        before = count_table_requests(log)
        for _ in range(5):
            send()
        time.sleep(1)
        counts = count_table_requests(log) - before
    print(counts)
    tables = {table for table, _ in counts}
    assert {"messages", "segments", "journal", "watermarks"} <= tables
    assert {method for _, method in counts} == {"PUT", "HEAD"}, "nothing is read again"
    for table in tables:
        assert counts[table, "PUT"] == 2 * counts[table, "HEAD"], table


def test_a_reader_takes_one_request_per_step_and_one_per_burst(
    s3: S3Server, children: Children, tmp_path: Path
) -> None:
    log, path, burst_count = tmp_path / "requests", s3.path(f"{uuid.uuid4().hex}/mq"), 5
    with (
        lakemq.connect(path, storage_options=s3.options, create=True) as mq,
        run_proxy(s3.url, "--log", str(log)) as url,
    ):
        # without renewals of the lease in between
        children.serve(path, s3.options, "project.interval.ms: 3600000\n")
        mq.topics.create(TOPIC)
        with lakemq.connect(path, storage_options=s3.at(url).options) as reader, mq.producer() as producer:

            def follow_burst() -> int:
                """Read a few steps at once. Return their number."""
                step = reader.state().step
                for number in range(3):
                    producer.send(TOPIC, value=str(number)).result(60)
                return reader.state().step - step

            follow_burst()  # the first one looks at the step that the reader began with
            before, began_s = len(log.read_text().splitlines()), time.monotonic()
            steps = sum(follow_burst() for _ in range(burst_count))
            count, took_s = len(log.read_text().splitlines()) - before, time.monotonic() - began_s
    assert steps >= 3 * burst_count
    # each burst begins with a read that may find nothing
    assert steps + burst_count <= count <= steps + 2 * burst_count + took_s / 10
