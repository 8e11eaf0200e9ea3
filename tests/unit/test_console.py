"""The console's pages: each shows what the command and SQL show, and never runs what a message holds."""

import html
import json
import re
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any, cast

import pyarrow as pa
import pytest
from unit.browsing import Browser, facts, notices, open_browser, table_rows
from unit.busy_namespace import HOSTILE, ORDERS, READERS, SHIPPED, WORKERS, BusyNamespace

from lakemq.errors import StorageError
from lakemq.jobs.console.app import MENU, PAGES
from lakemq.jobs.console.console import QUERY_LIMITS, Console, ConsoleSettings, NotPossible
from lakemq.jobs.console.pages import messages
from lakemq.jobs.console.parts import make_link

pytestmark = pytest.mark.slow

PLACES = {
    "/topic": {"name": ORDERS, "keys": "yes"},
    "/messages": {"topic": ORDERS},
    "/tail": {"topic": ORDERS},
    "/message": {"topic": ORDERS, "partition": 0, "offset": 0},
    "/group": {"name": WORKERS},
    "/dead-letter-topic": {"topic": f"{ORDERS}.dlq"},
}
"""What pages need to know beside their address."""

SCRIPTS = [f'<script defer src="/static/{name}"></script>' for name in ("uPlot.iife.min.js", "charts.js")]
TAIL_SCRIPT = '<script defer src="/static/tail.js"></script>'


@pytest.fixture(scope="module")
def browser(busy: BusyNamespace) -> Iterator[Browser]:
    """A visitor of a console that only shows."""
    busy.mq.sql("SELECT 1", wait_ms=30_000)  # the tables hold everything from here on
    with open_browser(busy.mq, busy.serving) as visitor:
        yield visitor


def read_sql(busy: BusyNamespace, query: str) -> list[dict[str, Any]]:
    return list(busy.mq.sql(query).to_pylist())


def test_every_page_opens_and_runs_only_the_scripts_of_charts_and_of_the_tail(browser: Browser) -> None:
    for path in PAGES:
        page = browser.get(path, **PLACES.get(path, {}))
        assert [text for text in notices(page) if "cannot be" in text] == [], path
        assert page.count("<h1>") == 1, path
        scripts = [TAIL_SCRIPT] if path == "/tail" else SCRIPTS[: 2 * ("<figure" in page)]
        assert re.findall("<script.*", page) == scripts, path
        assert re.findall(r'(?:src|href)="(?:https?:)?//', page) == [], path
        assert re.findall(r"<[^>]* (?:on\w+|style)=", page) == [], path
        assert "/change/" not in page, f"{path} of a console that only shows"
        assert [entry.href for entry in MENU if f'href="{entry.href}"' not in page] == [], path


def test_charts_show_the_numbers_of_samples_also_without_a_script(busy: BusyNamespace, browser: Browser) -> None:
    page = browser.get("/topic", name=ORDERS)
    for kind, unit in (("Consumed", "messages/s"), ("Lag", "messages"), ("Lag in time", "s")):
        assert f'aria-label="{kind} per group' in page
        assert f"Numbers in {unit}, newest first" in page
    (chart,) = re.findall(r'data-chart="([^"]*)" aria-label="Lag per group,', page)
    shown = json.loads(html.unescape(chart))
    expected = {group: sum(lag.lag for lag in busy.mq.groups.lag(group)) for group in (READERS, WORKERS)}
    assert {group: values[-1] for group, values in shown["lines"].items()} == expected
    assert shown["unit"] == "messages"
    newest = table_rows(page, "Lag per group")[0]
    assert sorted(map(float, newest[1:])) == sorted(expected.values())
    assert len(shown["times"]) == 60
    for minutes, count in ((15, 15), (360, 360), (1440, 360)):
        page = browser.get("/topic", name=ORDERS, minutes=minutes)
        (chart,) = re.findall(r'data-chart="([^"]*)" aria-label="Lag per group,', page)
        assert len(json.loads(html.unescape(chart))["times"]) in (count, count + 1), minutes


def test_history_shows_the_changes_of_the_view_newest_first(busy: BusyNamespace, browser: Browser) -> None:
    shown = table_rows(browser.get("/history"), "Administrative changes, newest first")
    query = "SELECT kind, subject, client FROM admin_changes ORDER BY step DESC, position DESC"
    assert [row[1:] for row in shown] == [[*row.values()] for row in read_sql(busy, query)]
    assert ["topic_created", ORDERS] in [row[1:3] for row in shown]


@pytest.mark.extended
def test_every_link_of_a_page_leads_to_a_page(browser: Browser) -> None:
    pages = [browser.get(path, **PLACES.get(path, {})) for path in PAGES]
    links = {link.replace("&amp;", "&") for page in pages for link in re.findall(r'href="(/[^"]*)"', page)}
    links = {link for link in links if "refresh=" not in link}  # the same pages again
    assert len(links) > 40
    links = {re.sub(r"=[^&]*", "", link): link for link in sorted(links)}.values()  # one of each kind
    broken = {link: response.status_code for link in links if (response := browser.client.get(link)).status_code != 200}
    assert not broken


# -- topics and groups, as SQL and the commands show them -------------------------------------------------


def test_overview_of_the_console_equals_sql(busy: BusyNamespace, browser: Browser) -> None:
    shown = facts(browser.get("/"))
    state = busy.mq.state()
    assert shown["leader"] == state.leader
    assert shown["epoch"] == str(state.leader_epoch)
    for name, query in (
        (
            "messages",
            "SELECT sum(high_watermark - log_start_offset) AS n FROM partitions p WHERE step = "
            "(SELECT max(step) FROM partitions q WHERE q.topic_id = p.topic_id AND q.partition = p.partition)",
        ),
        ("open transactions", "SELECT count(*) AS n FROM open_transactions"),
        ("delayed messages", "SELECT sum(messages) AS n FROM pending_delayed"),
        ("dead letters", "SELECT count(*) AS n FROM dead_lettered"),
    ):
        assert shown[name] == str(read_sql(busy, query)[0]["n"]), name
    assert (shown["due within 5 min"], shown["due within 60 min"]) == ("0", "1")


def test_a_topic_shows_its_partitions_and_readers(busy: BusyNamespace, browser: Browser) -> None:
    page = browser.get("/topic", name=ORDERS)
    described = busy.mq.topics.describe(ORDERS)
    rows = table_rows(page, "Partitions")
    assert [(row[1], row[2], row[5]) for row in rows] == [
        (str(first), str(end), state)
        for first, end, state in zip(
            described.beginning_offsets, described.end_offsets, described.partition_states, strict=True
        )
    ]
    lags = {row["group"]: row for row in read_sql(busy, f"SELECT * FROM group_lag WHERE topic = '{ORDERS}'")}
    readers = {row[0]: row[2] for row in table_rows(page, "Groups that read it")}
    assert readers == {group: str(row["lag"]) for group, row in lags.items()}
    assert {row[0] for row in table_rows(page, "Settings")} == {*described.settings}


def test_a_last_stable_offset_stands_before_the_open_transaction(busy: BusyNamespace, browser: Browser) -> None:
    """It comes from the same step as the end offset, so that it is never above it."""
    described = busy.mq.topics.describe(SHIPPED)
    assert (described.last_stable_offsets, described.end_offsets) == ([0], [1])
    (row,) = table_rows(browser.get("/topic", name=SHIPPED), "Partitions")
    assert row[2:4] == ["1", "0"]


def test_a_topic_shows_the_versions_of_its_schema(busy: BusyNamespace, browser: Browser) -> None:
    busy.mq.topics.create("described", config={"schema": "id INT"})
    busy.mq.topics.alter("described", {"schema": "id INT, note STRING"})
    rows = table_rows(browser.get("/topic", name="described"), "Schemas")
    assert [(row[0], row[2], row[4]) for row in rows] == [
        ("1", "id INT", "past"),
        ("2", "id INT, note STRING", "in force"),
    ]


def test_a_group_shows_who_owns_what(busy: BusyNamespace, browser: Browser) -> None:
    page = browser.get("/group", name=WORKERS)
    owned = read_sql(
        busy, f"SELECT partition, owner, state FROM group_assignments WHERE group = '{WORKERS}' ORDER BY 1"
    )
    rows = table_rows(page, "Partitions: who owns what")
    assert [(row[1], row[7], row[8]) for row in rows] == [(str(r["partition"]), r["state"], r["owner"]) for r in owned]
    unacknowledged = sum(lag.unacknowledged for lag in busy.mq.groups.lag(WORKERS))
    assert sum(int(row[5]) for row in rows) == unacknowledged > 0
    assert facts(page)["unacknowledged"] == str(unacknowledged)
    assert len(re.findall(r'<rect class="c0"', page)) == len(owned), "the picture of owners has a bar per partition"
    assert [row[0] for row in table_rows(page, "Members")] == [row["owner"] for row in owned[:1]]


# -- messages are found, and tails follow a topic ---------------------------------------------------------


def test_messages_are_found_by_offset_time_and_key(busy: BusyNamespace, browser: Browser) -> None:
    stored = list(busy.mq.fetch(ORDERS))
    rows = table_rows(browser.get("/messages", topic=ORDERS, partition=1, **{"from": 3}, limit=5), "Messages")
    expected = [m for m in stored if m.partition == 1 and 3 <= m.offset < 8]
    assert [(row[1], row[3]) for row in rows] == [(str(m.offset), m.key.decode()) for m in expected]  # type: ignore[union-attr]
    rows = table_rows(browser.get("/messages", topic=ORDERS, key="k3", limit=200), "Messages")
    assert sorted(row[:2] for row in rows) == sorted(
        [str(m.partition), str(m.offset)] for m in stored if m.key == b"k3"
    )
    assert table_rows(browser.get("/messages", topic=ORDERS, **{"from": "2999-01-01"}), "Messages") == []
    rows = table_rows(browser.get("/messages", topic=ORDERS, **{"from": "2020-01-01"}, limit=200), "Messages")
    assert len(rows) == len(stored)
    last = table_rows(browser.get("/messages", topic=ORDERS, limit=4), "Messages")
    ends = busy.mq.end_offsets(ORDERS)
    assert [row[1] for row in last] == [str(ends[p] - back) for p in (0, 1) for back in (2, 1)]


def test_messages_are_found_by_header_and_by_a_text_in_the_value(busy: BusyNamespace, browser: Browser) -> None:
    found = [message for message in busy.mq.fetch(ORDERS) if b'"order": 4' in (message.value or b"")]
    rows = table_rows(browser.get("/messages", topic=ORDERS, text='"order": 4', limit=200), "Messages")
    assert sorted(row[:2] for row in rows) == sorted([str(m.partition), str(m.offset)] for m in found)
    dead = f"{ORDERS}.dlq"
    for header, count in ((f"dead-letter.group={WORKERS}", 1), ("dead-letter.group", 1), ("dead-letter.group=x", 0)):
        assert len(table_rows(browser.get("/messages", topic=dead, header=header), "Messages")) == count, header


def write_position(busy: BusyNamespace, topic: str, *offsets: int) -> str:
    """Return what the address of a tail says that has read so far."""
    pairs = (f"{partition}-{offset}" for partition, offset in enumerate(offsets))
    return ".".join([str(busy.mq.topics.describe(topic).topic_id), *pairs])


def follow(page: str) -> str:
    """Return the address that the link of a tail leads to."""
    (link,) = re.findall(r'href="(/tail[?][^"]*)"', page)
    return html.unescape(link)


def test_a_tail_shows_what_came_since_its_address_newest_first_also_at_another_console(
    busy: BusyNamespace, browser: Browser
) -> None:
    title = "Messages"
    busy.mq.topics.create("tailed", 2)
    first = browser.get("/tail", topic="tailed")
    assert notices(browser.get("/tail", topic=ORDERS, limit=1)) == [], "nothing was passed over before the first look"
    busy.mq.publish("tailed", pa.table({"key": ["a", "b"], "value": ["1", "2"]}))
    second = browser.get(follow(first))
    assert sorted(row[4] for row in table_rows(second, title)) == ["1", "2"]
    assert table_rows(browser.get(follow(second)), title) == []
    busy.mq.publish("tailed", pa.table({"key": ["a", "b"], "value": ["3", "4"]}))
    with open_browser(busy.mq) as other:
        page = other.get(follow(second))
    assert sorted(row[4] for row in table_rows(page, title)) == ["3", "4"]
    beginning = write_position(busy, "tailed", 0, 0)
    only = browser.get("/tail", topic="tailed", text="4", after=beginning)
    assert [row[4] for row in table_rows(only, title)] == ["4"]
    newest = browser.get("/tail", topic="tailed", limit=1, after=beginning)
    assert len(table_rows(newest, title)) == 1
    assert notices(newest)[0].startswith("3 messages or offsets were passed over")
    beyond = browser.get("/tail", topic="tailed", after=write_position(busy, "tailed", 99, 99))
    assert table_rows(beyond, title) == [], "offsets of a longer log"
    busy.mq.topics.delete("tailed")
    assert notices(browser.get(follow(page), 404))
    busy.mq.topics.create("tailed", 2)
    busy.mq.publish("tailed", pa.table({"value": list("567890"), "partition": [0, 1] * 3}))
    assert len(table_rows(browser.get(follow(page)), title)) == 6, "a topic that was created again is read again"
    busy.mq.topics.delete("tailed")


def test_a_tail_passes_over_what_it_cannot_read_in_time(
    busy: BusyNamespace, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(messages, "TAIL_ROWS", 10)
    page = browser.get("/tail", topic=ORDERS, after=write_position(busy, ORDERS, 0, 0), limit=200)
    ends = busy.mq.end_offsets(ORDERS)
    assert {(row[0], row[1]) for row in table_rows(page, "Messages")} == {
        (str(partition), str(end - back)) for partition, end in ends.items() for back in range(1, 6)
    }
    assert notices(page)[0].startswith(f"{sum(ends.values()) - 10} messages or offsets were passed over")


def test_a_tail_that_has_no_time_shows_the_newest_of_each_partition(
    busy: BusyNamespace, browser: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    busy.mq.topics.create("busy", 3)
    partitions = [partition for partition in range(3) for _ in range(500)]
    busy.mq.publish("busy", pa.table({"value": ["x" * 20_000] * 1_500, "partition": partitions}))
    ends, beginning = busy.mq.end_offsets("busy"), write_position(busy, "busy", 0, 0, 0)
    monkeypatch.setattr(messages, "TAIL_S", 0.0)
    page = browser.get("/tail", topic="busy", after=beginning, limit=60)
    assert {(row[0], row[1]) for row in table_rows(page, "Messages")} == {
        (str(partition), str(end - back)) for partition, end in ends.items() for back in range(1, 21)
    }
    assert notices(page)[0].startswith(f"{sum(ends.values()) - 60:,} messages or offsets were passed over")
    monkeypatch.setattr(messages, "TAIL_S", float("inf"))
    page = browser.get("/tail", topic="busy", after=beginning, text="y")
    assert (table_rows(page, "Messages"), notices(page)) == ([], []), "all were read"
    busy.mq.topics.delete("busy")


def test_tail_is_refused_while_too_many_pages_follow_topics(browser: Browser) -> None:
    with ExitStack() as looks:
        while messages.LOOKS.acquire(blocking=False):
            looks.callback(messages.LOOKS.release)
        assert notices(browser.get("/tail", 503, topic=ORDERS))[0].startswith("Too many pages follow topics now.")
    for _ in range(9):  # each look ends, also one that finds no topic
        browser.get("/tail", 404, topic="missing")
    browser.get("/tail", topic=ORDERS)


def test_a_dead_letter_and_its_original_lead_to_each_other(busy: BusyNamespace, browser: Browser) -> None:
    (letter,) = busy.mq.dead_letters.all(f"{ORDERS}.dlq").to_pylist()
    place = {
        "topic": letter["source_topic"],
        "partition": letter["source_partition"],
        "offset": letter["source_offset"],
    }
    page = browser.get("/message", topic=f"{ORDERS}.dlq", partition=letter["partition"], offset=letter["offset"])
    assert html.escape(make_link("/message", **place)) in page
    (link,) = re.findall(r'href="(/messages[?][^"]*dlq[^"]*)">Its dead letters', browser.get("/message", **place))
    rows = table_rows(browser.get(html.unescape(link)), "Messages")
    assert [row[:2] for row in rows] == [[str(letter["partition"]), str(letter["offset"])]]


def test_a_message_is_decoded_by_the_schema_of_its_topic(busy: BusyNamespace, browser: Browser) -> None:
    schema = {"type": "record", "name": "r", "fields": [{"name": "id", "type": "long"}]}
    busy.mq.topics.create("typed", 1, {"schema": schema, "schema.type": "avro"})
    value = busy.mq.topics.schema("typed").encode_json([b'{"id": 7}'])
    busy.mq.publish("typed", pa.table({"value": pa.array(value, pa.binary())}))
    page = html.unescape(browser.get("/message", topic="typed", partition=0, offset=0))
    assert "Value (json by version 1 of the schema" in page
    assert '"id": 7' in page
    assert '"id": 7' not in html.unescape(
        browser.get("/message", topic="typed", partition=0, offset=0, **{"as": "hex"})
    )
    busy.mq.topics.delete("typed")


# -- nothing that others wrote runs -----------------------------------------------------------------------


def test_a_payload_is_shown_and_never_run(busy: BusyNamespace, browser: Browser) -> None:
    (message,) = [m for m in busy.mq.fetch(ORDERS) if m.value == HOSTILE.encode()]
    place = {"topic": ORDERS, "partition": message.partition, "offset": message.offset}
    pages = [
        browser.get("/message", **place),
        browser.get("/message", **place, **{"as": "text"}),
        browser.get("/messages", topic=ORDERS, partition=message.partition, **{"from": message.offset}, limit=1),
    ]
    for page in pages:
        assert "&lt;script&gt;alert(&#39;x&#39;)&lt;/script&gt;" in page
        assert "<script" not in page
        assert "<img" not in page
    hexadecimal = browser.get("/message", **place, **{"as": "hex"})
    assert message.value[:16].hex(" ") in hexadecimal  # type: ignore[index]
    sql = browser.submit(browser.get("/sql"), "/sql", text="SELECT value, '<b>x</b>' AS `<i>n</i>` FROM log LIMIT 200")
    assert "<script" not in sql
    assert "<b>x" not in sql
    assert "<i>n" not in sql
    letters = browser.get("/dead-letter-topic", topic=f"{ORDERS}.dlq")
    assert "no such &lt;b&gt;customer&lt;/b&gt;" in letters


def test_names_in_addresses_are_shown_and_never_run(browser: Browser) -> None:
    page = browser.get("/topic", 404, name="<script>alert(1)</script>")
    assert "<script" not in page
    page = browser.get("/group", 400, name="'\"><img src=x>")
    assert "<img" not in page


def test_an_open_transaction_is_shown_with_what_it_holds_up(browser: Browser) -> None:
    (row,) = table_rows(browser.get("/transactions", state="Ongoing"), "Transactional ids")
    assert (row[0], row[1], row[5]) == ("shipper", "Ongoing", "shipped-0")
    assert table_rows(browser.get("/transactions", state="CompleteAbort"), "Transactional ids") == []


# -- queries are bounded, and each fails alone ------------------------------------------------------------


@pytest.mark.extended
def test_an_inbox_that_another_writer_broke_fails_only_queries_that_read_it(busy: BusyNamespace) -> None:
    log = Path(busy.mq.namespace.path, "inbox/_delta_log")
    broken = log / f"{len([*log.glob('*.json')]):020d}.json"
    broken.write_text("{no JSON")
    try:
        assert read_sql(busy, "SELECT count(*) > 0 AS n FROM log") == [{"n": True}]
        with pytest.raises(StorageError, match="inbox: "):
            read_sql(busy, "SELECT topic FROM inbox")
    finally:
        broken.unlink()


@pytest.mark.extended
def test_a_query_that_takes_too_long_is_stopped(busy: BusyNamespace) -> None:
    endless = "SELECT count(*) FROM range(10000000) a CROSS JOIN range(10000000) b"
    with open_browser(busy.mq, query_timeout_s=0.3) as hasty:
        page = hasty.submit(hasty.get("/sql"), "/sql", 400, text=endless)
    assert "stopped after 0.3 s" in notices(page)[0]


def test_consoles_of_a_process_run_one_query_at_a_time(busy: BusyNamespace) -> None:
    limits, unused = QUERY_LIMITS._replace(timeout_s=0.0), cast(Any, None)
    first, second = (Console(busy.mq, unused, unused, ConsoleSettings(), list, limits) for _ in range(2))
    with first._lock_queries(), pytest.raises(NotPossible, match="only one runs at a time"):
        second.run_sql("SELECT 1")


@pytest.mark.extended
@pytest.mark.parametrize(("text", "reason"), [("", "missing"), ("x" * 20_000, "At most 10000")])
def test_a_query_without_text_or_of_too_long_text_is_refused(browser: Browser, text: str, reason: str) -> None:
    assert reason in notices(browser.submit(browser.get("/sql"), "/sql", 400, text=text))[0]


@pytest.mark.extended
def test_first_1000_rows_of_a_long_result_are_shown(browser: Browser) -> None:
    page = browser.submit(browser.get("/sql"), "/sql", text="SELECT * FROM range(5000)")
    assert len(table_rows(page, "Result")) == 1_000
    assert "The result has more rows. The first 1,000 are shown." in notices(page)


def test_doctor_page_examines_when_its_form_is_sent(browser: Browser) -> None:
    checks = table_rows(browser.submit(browser.get("/doctor"), "/doctor"), "Checks")
    assert {"sequencer", "mailbox", "data files"} <= {row[0] for row in checks if row[1] == "ok"}


# -- inputs of pages --------------------------------------------------------------------------------------


def test_inputs_outside_their_bounds_are_refused(browser: Browser) -> None:
    wrong: list[tuple[str, dict[str, Any]]] = [
        ("/messages", {"topic": ORDERS, "partition": "x"}),
        ("/messages", {"topic": ORDERS, "partition": 99}),
        ("/messages", {"topic": ORDERS, "limit": 100_000}),
        ("/messages", {"topic": ORDERS, "from": "yesterday"}),
        ("/messages", {"topic": ORDERS, "from": "9" * 19}),
        ("/messages", {"topic": ORDERS, "as": "html"}),
        ("/messages", {"topic": ORDERS, "isolation": "none"}),
        ("/messages", {}),
        ("/tail", {"topic": ORDERS, "after": "0.0-x"}),
        ("/message", {"topic": ORDERS, "partition": 0, "offset": 10_000}),
        ("/topic", {"name": "x" * 300}),
        ("/group", {"name": WORKERS, "minutes": 0}),
        ("/transactions", {"state": "nosuch"}),
    ]
    assert [(path, inputs) for path, inputs in wrong if not notices(browser.get(path, 400, **inputs))] == []


def test_inputs_that_a_page_does_not_take_are_refused(browser: Browser) -> None:
    for path in PAGES:
        page = browser.get(path, 400, **{**PLACES.get(path, {}), "since": "02:10"})
        expected = ", ".join(PAGES[path].inputs) or "none"
        assert f"There is no input 'since' here. Expected: {expected}." in " ".join(notices(page)), path


def test_pages_refresh_as_was_chosen_on_one_of_them(browser: Browser) -> None:
    browser.get("/", refresh="15")
    for path in ("/groups", "/topics", "/"):
        page = browser.get(path)
        assert '<meta http-equiv="refresh" content="15">' in page
        assert re.findall(r'<a href="[^"]*" aria-current="true">(.*?)</a>', page) == ["15 s"]
    assert "http-equiv" not in browser.get("/sql"), "what is typed there would be lost"
    browser.get("/groups", refresh="0")
    assert "http-equiv" not in browser.get("/")


def test_pages_of_missing_topics_and_groups_are_not_found(browser: Browser) -> None:
    for path, inputs in (("/topic", {"name": "nosuch"}), ("/group", {"name": "nosuch"}), ("/nosuch", {})):
        assert notices(browser.get(path, 404, **inputs))
