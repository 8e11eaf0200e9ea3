"""Clients of an object store with lines over TCP: leaders that are killed, and the requests that they save."""

from __future__ import annotations

import re
import signal
import time
import uuid
from collections import Counter
from pathlib import Path

import pytest
from object_servers import ObjectServer
from s3_server import S3Server
from store_proxy import run_proxy
from stores.test_processes import CONFIG, TOPIC, Children, Sending, check_each_once, children, path, terms, until
from targets import nightly_but

import lakemq
from lakemq.tables.storage.coordination.line_objects import list_lines

__all__ = ["children", "path"]  # fixtures


LISTENING = {
    "plain": "line.listen: 127.0.0.1:0\n",
    "TLS": "line.listen: 0.0.0.0:0\nline.advertise: 127.0.0.1\n",
}
_STEP = re.compile(r"(PUT|HEAD) \S*/steps/")
_MAILBOX = re.compile(r"\S+ \S*(mailbox|replies|line)(/|%2F)")
_DELETION = re.compile(r"(POST|DELETE) ")


@pytest.mark.parametrize("listen", nightly_but([LISTENING["TLS"]], LISTENING.values()), ids=LISTENING)
def test_a_killed_leader_loses_and_doubles_nothing_of_clients_with_lines(
    object_server: ObjectServer, path: str, children: Children, listen: str
) -> None:
    with lakemq.connect(path, storage_options=object_server.options, create=True) as mq:
        first = children.serve(path, object_server.options, CONFIG + listen)
        files = mq.namespace.files
        until(lambda: bool(list_lines(files)), "a leader listens")
        mq.topics.create(TOPIC)
        children.serve(path, object_server.options, CONFIG + listen)
        sending = Sending(mq)
        sending.start()
        sending.wait_for_more(20)
        assert files.folders("replies") == [], "all answers came on the line"
        first.send_signal(signal.SIGKILL)
        sending.wait_for_more(20)
        sending.end()
        check_each_once(mq, sending.acknowledged)
        assert [epoch for epoch, _ in terms(mq)] == [1, 2]
        names = files.list("line")
        assert len(names) == 1, "the new leader has removed the object of the killed one"
        until(lambda: sends_on_line(mq), "the client connects to the new leader")


def sends_on_line(mq: lakemq.Connection) -> bool:
    """Send a message, and return whether it went on a line."""
    with mq.producer() as producer:
        producer.send(TOPIC, value="again").result(60)
    assert mq.requester._line is not None
    return mq.requester._line._connection is not None


def count_requests(log: Path) -> Counter[str]:
    """Return how many requests were for steps, for letters and replies, and all others."""
    counts: Counter[str] = Counter()
    for line in log.read_text().splitlines():
        is_letter = _MAILBOX.match(line) or _DELETION.match(line)
        counts["steps" if _STEP.match(line) else "letters" if is_letter else "others"] += 1
    return counts


def test_a_step_by_line_takes_two_requests(s3: S3Server, children: Children, tmp_path: Path) -> None:
    """Without those of projections, which many steps share."""
    log, sent_count = tmp_path / "requests", 50
    path = s3.path(f"{uuid.uuid4().hex}/mq")
    with lakemq.connect(path, storage_options=s3.options, create=True), run_proxy(s3.url, "--log", str(log)) as url:
        options = s3.at(url).options
        children.serve(path, options, CONFIG + LISTENING["TLS"])
        with lakemq.connect(path, storage_options=options) as mq:
            until(lambda: bool(list_lines(mq.namespace.files)), "a leader listens")
            mq.topics.create(TOPIC)
            with mq.producer() as producer:
                producer.send(TOPIC, value="first").result(60)
                before, began_s = count_requests(log), time.monotonic()
                for number in range(sent_count):
                    producer.send(TOPIC, value=str(number)).result(60)
                counts, took_s = count_requests(log) - before, time.monotonic() - began_s
    print(f"requests of {sent_count} messages in {took_s:.2f} s: {dict(counts)}")
    # renewals of the lease and looks of passes come on top, one or two in a second
    assert 2 * sent_count <= counts["steps"] <= 2 * sent_count + 3 * took_s + 4
    assert counts["letters"] <= took_s + 4


@pytest.mark.nightly
def test_an_idle_leader_whose_clients_have_lines_takes_a_request_in_a_second(
    s3: S3Server, children: Children, tmp_path: Path
) -> None:
    log, idle_s = tmp_path / "requests", 20
    path = s3.path(f"{uuid.uuid4().hex}/mq")
    with (
        lakemq.connect(path, storage_options=s3.options, create=True) as mq,
        run_proxy(s3.url, "--log", str(log)) as url,
    ):
        children.serve(path, s3.at(url).options, LISTENING["plain"])
        until(lambda: bool(list_lines(mq.namespace.files)), "a leader listens")
        mq.topics.create(TOPIC)
        assert sends_on_line(mq)
        time.sleep(6)  # the projection of these, and listings that become less frequent
        before = count_requests(log)
        time.sleep(idle_s)
        counts = count_requests(log) - before
    print(f"requests of {idle_s} s: {dict(counts)}")
    assert sum(counts.values()) <= idle_s
