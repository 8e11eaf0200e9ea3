"""The console in a real browser: no page complains, no payload runs, forms work, dark colours and phones are served."""

import re
from collections.abc import Iterator

import pyarrow as pa
import pytest
from browser.webdriver import CHROMIUM, DRIVER, Tab
from unit.browsing import Browser, open_browser
from unit.busy_namespace import HOSTILE, ORDERS, READERS, WORKERS, BusyNamespace

from lakemq.jobs.console.app import PAGES
from lakemq.jobs.console.parts import make_link
from lakemq.testing import wait_until

pytestmark = pytest.mark.skipif(not (CHROMIUM and DRIVER), reason="needs chromium and chromedriver")

_OF_OBJECTS = ("/topic", "/messages", "/tail", "/message", "/group", "/dead-letter-topic")
ADDRESSES = [
    *(path for path in PAGES if path not in _OF_OBJECTS),
    make_link("/topic", name=ORDERS, keys="yes"),
    make_link("/messages", topic=ORDERS, limit=200),
    make_link("/tail", topic=ORDERS),
    make_link("/message", topic=ORDERS, partition=0, offset=0),
    make_link("/group", name=WORKERS),
    make_link("/dead-letter-topic", topic=f"{ORDERS}.dlq"),
]
_LOOKS = 60

_FIND_SCROLLED = """[...document.querySelectorAll(".scroll")]
  .filter((box) => box.scrollWidth > box.clientWidth).map((box) => box.ariaLabel)"""
"""Returns the titles of the tables that are wider than the page has room for."""

_FIND_BROKEN_WORDS = """[...document.querySelectorAll("td a")]
  .filter((link) => link.getClientRects().length > 1)
  .map((link) => link.innerText).filter((text) => /^.{1,6}$/.test(text))"""
"""Returns the short words in tables that do not stand on one line."""

_READ_POSITION = "document.querySelector('.actions a').href"
"""Returns the address of the next look of a tail."""

_FIND_LINE = """(() => {
  const { ctx, bbox, series } = document.querySelector("figure").plot;
  const colour = series[1].stroke().match(/[0-9a-f]{2}/g).map((digits) => parseInt(digits, 16));
  const { data, width } = ctx.getImageData(bbox.left, bbox.top, bbox.width, bbox.height);
  const columns = [];
  for (let i = 0; i < data.length; i += 4) {
    if (colour.every((part, n) => data[i + n] === part)) columns.push((i / 4) % width);
  }
  return [Math.min(...columns), Math.max(...columns)];
})()"""
"""Returns the first and the last column of the first chart that have the colour of its first line."""


@pytest.fixture(scope="module")
def visitor(busy: BusyNamespace) -> Iterator[Browser]:
    busy.mq.sql("SELECT 1", wait_ms=30_000)
    with open_browser(busy.mq, busy.serving, allow_changes=True) as browser:
        yield browser


def test_no_page_logs_to_the_console_of_the_browser(visitor: Browser, tab: Tab) -> None:
    tab.open(f"{visitor.address}/nosuch")
    assert any("404" in message for message in tab.read_console()), "a failed request is noticed"
    for address in ADDRESSES:
        tab.open(visitor.address + address)
        assert tab.evaluate("document.querySelectorAll('h1').length") == 1, address
        assert tab.read_console() == [], address


def test_hostile_payload_is_shown_as_text(busy: BusyNamespace, visitor: Browser, tab: Tab) -> None:
    (message,) = [m for m in busy.mq.fetch(ORDERS) if m.value == HOSTILE.encode()]
    for address in (
        make_link("/messages", topic=ORDERS, limit=200),
        make_link("/message", topic=ORDERS, partition=message.partition, offset=message.offset),
    ):
        tab.open(visitor.address + address)
        assert HOSTILE in tab.evaluate("document.body.textContent")
        assert tab.evaluate("document.scripts.length + document.images.length") == 0


def test_a_chart_has_a_line_and_named_axes(visitor: Browser, tab: Tab) -> None:
    for width in (1280, 390):
        tab.emulate(width, 900)
        tab.open(f"{visitor.address}/")
        labels = "[...document.querySelectorAll('figure')].map(({ plot }) => plot.axes.map(({ label }) => label))"
        units = ["messages/s", "messages/s", "messages", "s", "steps/s", "ms", "ms"]
        assert tab.evaluate(labels) == [["time (UTC)", unit] for unit in units]
        assert "payments" in tab.evaluate("document.querySelector('figure .u-legend').innerText")
        left, right = tab.evaluate(_FIND_LINE)
        assert right - left > 100, "points from the left to the right"
    tab.emulate(1280, 900)


def test_pages_fit_a_phone_and_a_desk_in_both_colours(visitor: Browser, tab: Tab) -> None:
    for scheme, is_dark, width in (("light", False, 390), ("dark", True, 390), ("light", False, 1280)):
        tab.emulate(width, 844, scheme)
        for address in ADDRESSES:
            tab.open(visitor.address + address)
            assert tab.evaluate("document.documentElement.scrollWidth <= window.innerWidth"), (address, scheme)
            assert tab.evaluate(_FIND_SCROLLED) == [], (address, width)
            assert tab.evaluate(_FIND_BROKEN_WORDS) == [], (address, width)
            assert (read_brightness(tab, "backgroundColor") < 80) == is_dark, (address, scheme)
            assert abs(read_brightness(tab, "color") - read_brightness(tab, "backgroundColor")) > 150
    tab.emulate(1280, 900)


def read_brightness(tab: Tab, style: str) -> float:
    """Return the mean of red, green and blue of the page's text or background."""
    colour = tab.evaluate(f"getComputedStyle(document.body).{style}")
    return sum(map(int, re.findall(r"\d+", colour)[:3])) / 3


def test_a_visitor_resets_offsets_with_the_mouse(busy: BusyNamespace, visitor: Browser, tab: Tab) -> None:
    tab.open(f"{visitor.address}/group?name={READERS}")
    form = "form[action='/change/reset-offsets']"
    tab.fill(f"{form} input[name=topic]", ORDERS)
    tab.fill(f"{form} input[name=to]", "earliest")
    tab.click(f"{form} button")
    assert "will go on from these offsets" in tab.evaluate("document.body.textContent")
    assert [lag.committed_offset for lag in busy.mq.groups.lag(READERS)] == [10, 20]
    tab.click(f"{form} button")
    assert "The offsets are reset." in tab.evaluate("document.body.textContent")
    assert [lag.committed_offset for lag in busy.mq.groups.lag(READERS)] == [0, 0]
    assert tab.read_console() == []


def test_a_visitor_follows_a_topic_stops_and_continues(busy: BusyNamespace, visitor: Browser, tab: Tab) -> None:
    busy.mq.topics.create("followed", 1)
    count, shown = "document.querySelectorAll('main table tbody tr').length", "document.body.textContent"
    button = "document.querySelector('.actions button')"
    tab.open(f"{visitor.address}/tail?topic=followed")
    busy.mq.publish("followed", pa.table({"value": [HOSTILE]}))
    wait_until(lambda: tab.evaluate(count) == 1, "the first message", 60)
    assert HOSTILE in tab.evaluate(shown)
    assert tab.evaluate("document.images.length + [...document.scripts].filter(({ src }) => !src).length") == 0
    busy.mq.publish("followed", pa.table({"value": [f"{n}" for n in range(250)]}))
    wait_until(lambda: tab.evaluate(count) == 51, "more messages, of which a look shows 50", 60)
    for _ in range(4):
        busy.mq.publish("followed", pa.table({"value": ["x"] * 50}))
        wait_until(lambda: f"-{busy.mq.end_offsets('followed')[0]}" in tab.evaluate(_READ_POSITION), "a look", 60)
    assert tab.evaluate(count) == 200, "the page keeps the newest"
    tab.evaluate(f"{button}.click()")
    assert tab.evaluate(f"{button}.textContent") == "Continue"
    position = tab.evaluate(_READ_POSITION)
    busy.mq.publish("followed", pa.table({"value": ["after the stop"]}))
    look_now(tab)
    assert tab.evaluate(_READ_POSITION) == position, "no look while it is stopped"
    tab.evaluate(f"{button}.click()")
    wait_until(lambda: "after the stop" in tab.evaluate(shown), "the messages since", 60)
    busy.mq.topics.delete("followed")
    wait_until(lambda: "Stopped: 404 UNKNOWN_TOPIC" in tab.evaluate(shown), "the reason for the end", 60)
    assert any("404" in message for message in tab.read_console())


def look_now(tab: Tab) -> None:
    """Let a tail do what it does each second, and wait until that is done."""
    wait_until(lambda: not tab.evaluate("isLooking"), "the end of the look", 60)
    tab.evaluate("(nextLookMs = 0, tick())")


def test_a_tail_looks_again_after_a_failure_and_says_why_it_stops(
    busy: BusyNamespace, visitor: Browser, tab: Tab
) -> None:
    state, repair = "document.querySelector('[role=status]').textContent", "(window.fetch = realFetch, 0)"
    busy.mq.topics.create("shaky", 1)
    busy.mq.publish("shaky", pa.table({"value": ["after the failure"]}))
    for failure, reason in (
        ("Promise.reject(new TypeError('no network'))", "no network"),
        ("Promise.resolve(new Response('It starts.', { status: 503 }))", "503 It starts."),
    ):
        tab.open(f"{visitor.address}/tail?topic=shaky")
        tab.evaluate("(window.realFetch = window.fetch, 0)")
        tab.evaluate(f"(window.fetch = () => {failure}, 0)")
        wait_until(lambda: "Looks again" in tab.evaluate(state), "a failure", 60)
        assert tab.evaluate(state).endswith(f" of 10): {reason}")
        tab.evaluate(repair)
        wait_until(lambda: tab.evaluate(state).startswith("Follows the topic."), "a look after it", 60)
        assert tab.evaluate("document.querySelectorAll('main table tbody tr').length") == 1
    tab.evaluate(f"(window.fetch = () => {failure}, 0)")
    while tab.evaluate("isRunning"):  # until the test's timeout
        look_now(tab)
    assert tab.evaluate(state) == "Stopped: 503 It starts."
    tab.evaluate("(window.fetch = async () => new Response('It needs its token.', { status: 401 }), 0)")
    tab.evaluate("document.querySelector('.actions button').click()")
    look_now(tab)
    wait_until(lambda: not tab.evaluate("isRunning"), "the refusal", 60)
    assert tab.evaluate(state) == "Stopped: 401 It needs its token."
    tab.evaluate(repair)
    tab.evaluate("document.querySelector('.actions button').click()")
    wait_until(lambda: tab.evaluate(state).startswith("Follows the topic. The newest"), "a look after it", 60)
    busy.mq.topics.delete("shaky")
    tab.open(f"{visitor.address}/")
    tab.read_console()


def test_a_visitor_runs_sql(visitor: Browser, tab: Tab) -> None:
    tab.open(f"{visitor.address}/sql")
    tab.fill("textarea", "SELECT 6 * 7 AS answer")
    tab.click("form[action='/sql'] button")
    assert tab.evaluate("document.querySelector('td').textContent") == "42"


def test_a_visitor_logs_in(busy: BusyNamespace, tab: Tab) -> None:
    token = "a-token-for-this-test"
    with open_browser(busy.mq, busy.serving, token=token) as guarded:
        tab.open(f"{guarded.address}/topics")
        tab.fill("input[name=token]", token)
        tab.click("form[action='/login'] button")
        tab.open(f"{guarded.address}/topics")
        assert tab.evaluate("document.querySelector('h1').textContent") == "Topics"
        assert token not in tab.evaluate("document.cookie")


def test_a_page_that_refreshes_leaks_nothing(visitor: Browser, tab: Tab) -> None:
    tab.open(f"{visitor.address}/")
    before = tab.count_memory()
    for _ in range(_LOOKS):
        tab.open(f"{visitor.address}/")
    after = tab.count_memory()
    assert after["Documents"] <= before["Documents"] + 5
    assert after["Nodes"] <= 2 * before["Nodes"] + 1_000
    assert after["JSHeapUsedSize"] <= before["JSHeapUsedSize"] + 5_000_000
