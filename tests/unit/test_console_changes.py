"""Changes with the console: only if allowed, each after a confirmation, with a token against foreign sites."""

import html
import logging
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from unit.browsing import Browser, notices, open_browser, table_rows
from unit.busy_namespace import ORDERS, READERS, SHIPPED, WORKERS, BusyNamespace
from unit.served import CONFIG, served, until, values

import lakemq
from lakemq.engine.client.consume.group_consumer import GroupConsumer
from lakemq.engine.protocol.codec.beat import OverdueMember, encode_overdue_members
from lakemq.jobs.console.changes import CHANGES, LONGEST_TEXT, list_cures
from lakemq.jobs.console.parts import make_link
from lakemq.tables.storage.coordination.beats import OverdueNotes

pytestmark = pytest.mark.slow

INPUTS = {
    "reset-offsets": {"group": READERS, "topic": ORDERS, "to": "earliest"},
    "redrive": {"topic": f"{ORDERS}.dlq", "group": WORKERS},
    "purge": {"topic": f"{ORDERS}.dlq", "group": WORKERS},
    "cancel-delayed": {"topic": ORDERS},
    "abort": {"id": "shipper"},
    "remove-member": {"group": WORKERS, "member": "nobody"},
    "alter-topic": {"topic": ORDERS, "setting": "retention.ms", "value": "1234567"},
    "delete-topic": {"topic": ORDERS},
    "create-topic": {"topic": "invented", "partitions": "2"},
    "add-partitions": {"topic": ORDERS, "partitions": "3"},
    "publish": {"topic": ORDERS, "key": "k", "headers": "a=b", "text": "typed"},
    "delete-records": {"topic": ORDERS, "before": "0=1"},
    "delete-group": {"group": READERS},
    "alter-group": {"group": WORKERS, "setting": "max.redelivery.count", "value": "9"},
}


@pytest.fixture(scope="module")
def browser(busy: BusyNamespace) -> Iterator[Browser]:
    """A visitor of a console that allows changes."""
    with open_browser(busy.mq, busy.serving, allow_changes=True) as visitor:
        yield visitor


def read_changeable(busy: BusyNamespace) -> tuple[object, ...]:
    """Return everything that the changes of INPUTS would change."""
    mq = busy.mq
    return (
        [lag.committed_offset for lag in mq.groups.lag(READERS)],
        mq.dead_letters.counts(),
        mq.delayed.all(ORDERS),
        mq.transactions.describe("shipper").state,
        mq.topics.describe(ORDERS),
        [topic.topic for topic in mq.topics.list()],
        mq.groups.describe(WORKERS).settings,
    )


# -- a change needs permission and a confirmation ---------------------------------------------------------


def test_every_change_of_the_console_has_a_case() -> None:
    assert {*INPUTS} == {*CHANGES}


def test_console_without_allow_changes_changes_nothing(busy: BusyNamespace) -> None:
    before = read_changeable(busy)
    with open_browser(busy.mq, busy.serving) as visitor:
        for name, inputs in INPUTS.items():
            assert "--allow-changes" in notices(visitor.get(f"/change/{name}", 403, **inputs))[0]
            response = visitor.client.post(f"/change/{name}", data=inputs)
            assert response.status_code == 403, name
    assert read_changeable(busy) == before


def test_settings_change_after_the_confirmation(busy: BusyNamespace, browser: Browser) -> None:
    page = browser.get("/change/alter-topic", **INPUTS["alter-topic"])
    assert table_rows(page, "Change") == [["retention.ms", "604800000", "1234567"]]
    assert "Refresh:" not in page
    assert busy.mq.topics.describe(ORDERS).settings["retention.ms"] == 604_800_000
    assert notices(browser.submit(page, "/change/alter-topic"))[0] == "The setting is changed."
    assert busy.mq.topics.describe(ORDERS).settings["retention.ms"] == 1_234_567
    browser.confirm("alter-topic", topic=ORDERS, setting="retention.ms", value="")
    assert busy.mq.topics.describe(ORDERS).settings["retention.ms"] == 604_800_000
    browser.confirm("alter-group", **INPUTS["alter-group"])
    assert busy.mq.groups.describe(WORKERS).settings["max.redelivery.count"] == 9


def test_a_topic_is_deleted_after_the_confirmation_has_named_its_readers(busy: BusyNamespace, browser: Browser) -> None:
    unread = sum(lag.lag for lag in busy.mq.groups.lag(READERS))
    (loss,) = [text for text in notices(browser.get("/change/delete-topic", topic=ORDERS)) if "deleted" in text]
    assert f"{READERS} (0 members, {unread} unread)" in loss
    assert "This cannot be undone." in loss
    busy.mq.topics.create("doomed")
    page = browser.get("/change/delete-topic", topic="doomed")
    assert "doomed" in [topic.topic for topic in busy.mq.topics.list()]
    assert notices(browser.submit(page, "/change/delete-topic"))[0] == "The topic is deleted."
    assert "doomed" not in [topic.topic for topic in busy.mq.topics.list()]


def test_a_group_without_members_is_deleted_after_the_confirmation(busy: BusyNamespace, browser: Browser) -> None:
    busy.mq.groups.create("doomed")
    assert [row[0] for row in table_rows(browser.get("/groups", text="DOOM"), "Groups")] == ["doomed"]
    page = browser.get("/change/delete-group", group="doomed")
    assert notices(page)[0].startswith("The group doomed with its committed offsets")
    assert notices(browser.submit(page, "/change/delete-group"))[0] == "The group is deleted."
    assert "doomed" not in busy.mq.groups.list()
    page = browser.get("/change/delete-group", group=WORKERS)
    assert notices(page)[1] == "It has 1 member, and cannot be deleted while it has any."
    assert notices(browser.submit(page, "/change/delete-group", 400))[0].startswith("NON_EMPTY_GROUP")


def test_a_change_is_listed_with_the_name_of_the_token_and_the_address(
    busy: BusyNamespace, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "lakemq.console")
    tokens = {"alice": "the-token-of-alice", "bob": "bobs-token-which-is-longer"}
    text = "\n".join(f"{name} {token}" for name, token in tokens.items())
    for minutes, (name, token) in enumerate(tokens.items(), 7):
        with open_browser(busy.mq, busy.serving, token=text, allow_changes=True) as visitor:
            visitor.submit(visitor.get("/login"), "/login", token=token)
            visitor.confirm("alter-topic", topic=SHIPPED, setting="retention.ms", value=f"{60_000 * minutes}")
            busy.mq.sql("SELECT 1", wait_ms=30_000)
            assert caplog.messages[-1] == f"alter-topic in {busy.mq.namespace.path}: {name} at 127.0.0.1"
            newest, *_ = table_rows(visitor.get("/changes", text=SHIPPED.upper()), "Changes, newest first")
            assert newest[1:3] == ["topic_altered", SHIPPED]
            assert newest[3].startswith(f"console-{name}-127.0.0.1-")
            assert f"{60_000 * minutes}" in newest[4]
            assert table_rows(visitor.get("/changes", text="no such text"), "Changes, newest first") == []


# -- each change does what its page says ------------------------------------------------------------------


def test_console_creates_publishes_to_widens_and_empties_a_topic(busy: BusyNamespace, browser: Browser) -> None:
    page = browser.confirm("create-topic", topic="made", partitions="1")
    assert notices(page)[0] == "The topic is created."
    publish = {"topic": "made", "key": "k", "headers": "a=b\nc=d=e", "text": '{"n": "\u00e9"}'}
    assert notices(browser.confirm("publish", **publish))[0] == "The message is published."
    (message,) = busy.mq.fetch("made")
    assert (message.key, message.value) == (b"k", publish["text"].encode())
    assert [*map(tuple, message.headers or ())] == [("a", b"b"), ("c", b"d=e")]
    page = browser.get("/change/publish", topic="made", headers="a=b\r\nc=d", text="1\r\n2")
    assert notices(page) == ["A message with a value of 3 bytes will be published to made."]
    assert re.findall(r"<h2>(\w+)</h2><pre[^>]*>(.*?)</pre>", page, re.DOTALL) == [
        *(("Key", "none"), ("Headers", "a=b\nc=d"), ("Value", "1\n2"))
    ]
    browser.submit(page, "/change/publish")
    assert [(message.key, message.value) for message in busy.mq.fetch("made")][1:] == [(None, b"1\n2")]
    assert "Keys may go to other partitions" in browser.get("/change/add-partitions", topic="made", partitions="3")
    browser.confirm("add-partitions", topic="made", partitions="3")
    assert busy.mq.topics.describe("made").partitions == 3
    page = browser.get("/change/delete-records", topic="made", before="0=1 1=0")
    assert notices(page) == ["1 offsets of made will be deleted. This cannot be undone."]
    assert table_rows(page, "Offsets") == [["0", "0", "1", "2"], ["1", "0", "0", "0"]]
    browser.submit(page, "/change/delete-records")
    assert busy.mq.topics.describe("made").beginning_offsets == [1, 0, 0]
    busy.mq.topics.delete("made")


def test_longest_text_is_published_with_the_forms_of_the_console(busy: BusyNamespace, browser: Browser) -> None:
    busy.mq.topics.create("long")
    text = "\U0001f600" * LONGEST_TEXT
    preview = browser.submit(browser.get("/topic", name="long"), "/preview/publish", text=text)
    assert notices(browser.submit(preview, "/change/publish"))[0] == "The message is published."
    assert [message.value for message in busy.mq.fetch("long")] == [text.encode()]
    busy.mq.topics.delete("long")


def test_commands_of_an_advice_become_links_to_changes_that_do_the_same() -> None:
    commands = {
        "groups remove-members g --member m-1": make_link("/change/remove-member", group="g", member="m-1"),
        "transactions abort 'etl job'": make_link("/change/abort", id="etl job"),
        "topics alter a --config retention.waits.for.groups=true": make_link(
            "/change/alter-topic", topic="a", setting="retention.waits.for.groups", value="true"
        ),
        "groups alter g --config offsets.retention.ms=-1": make_link(
            "/change/alter-group", group="g", setting="offsets.retention.ms", value="-1"
        ),
        "topics delete-records a --before 0=5 --before 1=7": make_link(
            "/change/delete-records", topic="a", before="0=5 1=7"
        ),
        "topics create b": make_link("/change/create-topic", topic="b"),
        "delayed purge a": make_link("/change/cancel-delayed", topic="a"),
    }
    without = ["serve", "topics describe t --keys", "topics alter a --partitions 3", "delayed release"]
    links = list_cures(shlex.split(command) for command in (*commands, *without))
    assert [link.href for link in links] == [*commands.values()]


def test_offsets_are_reset_as_the_confirmation_says(busy: BusyNamespace, browser: Browser) -> None:
    page = browser.get("/change/reset-offsets", **INPUTS["reset-offsets"])
    assert table_rows(page, "Changes") == [[ORDERS, "0", "10", "0"], [ORDERS, "1", "20", "0"]]
    second = browser.get("/change/reset-offsets", **INPUTS["reset-offsets"], partition="1")
    assert table_rows(second, "Changes") == [[ORDERS, "1", "20", "0"]]
    after = browser.submit(page, "/change/reset-offsets")
    assert notices(after)[0] == "The offsets are reset."
    assert [lag.committed_offset for lag in busy.mq.groups.lag(READERS)] == [0, 0]


def test_confirmation_says_whose_unread_messages_a_change_loses(busy: BusyNamespace, browser: Browser) -> None:
    committed = sum(lag.committed_offset or 0 for lag in busy.mq.groups.lag(READERS))
    page = browser.get("/change/reset-offsets", group=READERS, topic=ORDERS, to="latest")
    count = sum(int(after) - int(before) for _, _, before, after in table_rows(page, "Changes"))
    assert notices(page)[0] == f"It skips {count} offsets that it has not read."
    unread = sum(lag.lag for lag in busy.mq.groups.lag(READERS))
    page = browser.get("/change/alter-topic", topic=ORDERS, setting="retention.ms", value="1")
    (loss,) = [text for text in notices(page) if "unread" in text]
    assert loss.startswith("With this setting, retention deletes unread messages of ")
    assert f"{READERS} ({unread})" in loss
    assert sum(lag.committed_offset or 0 for lag in busy.mq.groups.lag(READERS)) == committed


def test_dead_letters_are_sent_back(busy: BusyNamespace, browser: Browser) -> None:
    page = browser.get("/change/redrive", **INPUTS["redrive"])
    assert "1 dead letters" in notices(page)[0]
    count = len(values(busy.mq, ORDERS))
    browser.submit(page, "/change/redrive")
    assert len(values(busy.mq, ORDERS)) == count + 1
    assert busy.mq.dead_letters.counts() == []


def test_dead_letters_are_purged(busy: BusyNamespace, browser: Browser) -> None:
    messages: list[Any] = []
    until(lambda: bool(messages.extend(busy.member.poll(timeout_ms=500)) or messages))
    busy.member.reject(messages[:1], error="no such customer")
    until(lambda: sum(count.messages for count in busy.mq.dead_letters.counts()) == 1)
    page = browser.get("/dead-letter-topic", topic=f"{ORDERS}.dlq")
    assert "/change/purge" in page
    page = browser.get("/change/purge", **INPUTS["purge"] | {"group": "others"})
    assert notices(page)[0].startswith("0 dead letters")
    page = browser.get("/change/purge", **INPUTS["purge"])
    assert notices(page)[0].startswith(f"1 dead letters of {ORDERS}.dlq will be purged")
    count = len(values(busy.mq, ORDERS))
    assert notices(browser.submit(page, "/change/purge"))[0] == "The dead letters are purged."
    assert busy.mq.dead_letters.counts() == []
    assert len(values(busy.mq, ORDERS)) == count


@pytest.mark.extended
def test_delayed_messages_are_cancelled(busy: BusyNamespace, browser: Browser) -> None:
    receipt = busy.mq.delayed.schedule(ORDERS, "a", key="only", delay_ms=600_000)
    busy.mq.delayed.schedule(ORDERS, "b", delay_ms=600_000)
    browser.confirm("cancel-delayed", receipt=receipt)
    assert busy.mq.delayed.cancel(receipt) in ("cancelled", "not_found")
    waiting = sum(info.messages for info in busy.mq.delayed.all(ORDERS))
    page = browser.get("/change/cancel-delayed", topic=ORDERS)
    assert notices(page)[0].startswith(f"{waiting} messages that wait for {ORDERS}")
    browser.submit(page, "/change/cancel-delayed")
    assert busy.mq.delayed.all(ORDERS) == []


def test_a_transaction_is_aborted(busy: BusyNamespace, browser: Browser) -> None:
    with busy.mq.producer("doomed") as producer:
        producer.begin_transaction()
        producer.send(SHIPPED, "never").result()
        browser.confirm("abort", id="doomed")
        assert busy.mq.transactions.describe("doomed").state == "CompleteAbort"
    assert "never" not in values(busy.mq, SHIPPED)


def test_a_group_offers_the_changes_that_end_its_waits(busy: BusyNamespace, browser: Browser) -> None:
    mq = busy.mq
    with mq.consumer("idlers", topics=[SHIPPED], protocol="cooperative") as idler:
        assert isinstance(idler, GroupConsumer)
        until(lambda: bool(not idler.poll(timeout_ms=100) and mq.groups.members("idlers")))
        (info,) = mq.groups.members("idlers")
        late = encode_overdue_members([OverdueMember("idlers", info.member_id, None, 1_700_000_000_000)])
        OverdueNotes(mq.namespace.files).put(mq.state().leader_epoch, 9_999_999_999, late)
        page = browser.get("/group", name="idlers")
        assert any("has not polled since" in text for text in notices(page))
        (href,) = {*re.findall(r'href="(/change/remove-member[^"]*)"', page)}
        assert page.count(f'href="{href}"') == 2, "beside the advice, and in the table of members"
        confirmation = browser.get(html.unescape(href))
        assert notices(confirmation)[0].startswith(f"The member {info.member_id} of idlers will be removed.")
        assert notices(browser.submit(confirmation, "/change/remove-member"))[0] == "The member is removed."
        assert mq.groups.members("idlers") == []
        OverdueNotes(mq.namespace.files).clear()


# -- what is refused --------------------------------------------------------------------------------------


def test_bad_inputs_of_changes_are_refused(browser: Browser) -> None:
    for name, inputs, reason in (
        ("alter-topic", {"topic": ORDERS, "setting": "nosuch", "value": "1"}, "There is no setting"),
        ("alter-topic", {"topic": ORDERS, "setting": "retention.ms", "value": "x" * 2_000}, "At most"),
        ("reset-offsets", {"group": READERS, "topic": ORDERS, "to": ""}, "missing"),
        ("reset-offsets", {"group": READERS, "partition": "1", "to": "latest"}, "needs a topic"),
        ("reset-offsets", {"group": READERS, "topic": ORDERS, "partition": "-1", "to": "latest"}, "number from 0"),
        ("reset-offsets", {"group": READERS, "topic": ORDERS, "to": "soon"}, "not a position"),
        ("reset-offsets", {"group": WORKERS, "topic": ORDERS, "to": "earliest"}, "NON_EMPTY_GROUP"),
        ("cancel-delayed", {}, "Give a receipt, or a topic"),
        ("create-topic", {"topic": ORDERS, "partitions": "0"}, "whole number from 1"),
        ("add-partitions", {"topic": ORDERS, "partitions": "2"}, "Expected a larger number"),
        ("create-topic", {"topic": ORDERS}, "TOPIC_ALREADY_EXISTS"),
        ("create-topic", {"topic": "a b"}, "This is not a topic name"),
        ("create-topic", {"topic": "new", "partitions": "100001"}, "from 1 to 100000"),
        ("add-partitions", {"topic": ORDERS, "partitions": "100001"}, "from 1 to 100000"),
        ("delete-records", {"topic": ORDERS, "before": "0=1 0=2"}, "each partition once"),
        ("delete-records", {"topic": ORDERS, "before": "0=999"}, "ends at offset"),
        ("publish", {"topic": ORDERS, "headers": "a"}, "name=value"),
        ("delete-records", {"topic": ORDERS, "before": "all"}, "PARTITION=OFFSET"),
        ("delete-records", {"topic": ORDERS, "before": "7=1"}, "no partition 7"),
    ):
        assert reason in notices(browser.get(f"/change/{name}", 400, **inputs))[0]
    assert notices(browser.get("/change/nosuch", 404))


def test_a_form_changes_no_other_namespace_that_has_come_to_its_address(
    busy: BusyNamespace, browser: Browser, tmp_path: Path
) -> None:
    asked = browser.get("/topic", name=ORDERS)
    confirmed = browser.get("/change/delete-topic", topic=ORDERS)
    with served(tmp_path) as other:
        other.topics.create(ORDERS)
        with open_browser(other, allow_changes=True) as visitor:
            for page, action in ((asked, "/preview/publish"), (confirmed, "/change/delete-topic")):
                refused = visitor.submit(page, action, 409)
                assert notices(refused)[0].startswith("Nothing was changed, because this form is not of ")
                assert other.namespace.path in notices(refused)[0]
            assert visitor.client.post("/change/delete-topic", data={"topic": ORDERS}).status_code == 409
            assert other.topics.describe(ORDERS).end_offsets == [0]
            visitor.confirm("delete-topic", topic=ORDERS)
            assert other.topics.list() == []
    assert ORDERS in [topic.topic for topic in busy.mq.topics.list()]


def test_nothing_can_be_changed_without_a_sequencer(tmp_path_factory: pytest.TempPathFactory) -> None:
    with lakemq.connect(tmp_path_factory.mktemp("alone") / "mq", create=True, config=CONFIG) as mq:
        with mq.serving(), open_browser(mq) as visitor:
            mq.topics.create("t")
            mq.publish("t", pa.table({"value": ["1"]}))
            assert notices(visitor.get("/"))[0].startswith("All is well")
        until(lambda: not mq.state().leader)
        with open_browser(mq, allow_changes=True) as visitor:
            page = visitor.get("/change/alter-topic", 409, topic="t", setting="retention.ms", value="1")
            assert "lakemq serve" in notices(page)[0]
            assert "No sequencer leads" in notices(visitor.get("/"))[0]
            assert "messages" in visitor.get("/topics")
