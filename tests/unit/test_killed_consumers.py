"""The times in docs/groups-reference.md: how long partitions wait for a killed consumer, with all defaults."""

import re
from pathlib import Path

from lakemq.engine.client.consume.options import CONSUMER
from lakemq.engine.protocol.parameters import GROUP
from lakemq.engine.sequencer import attendance

PAGE = Path(__file__).parents[2] / "docs/groups-reference.md"


def read_table() -> dict[str, list[str]]:
    """Return the table of the page: where the consumer was killed -> the cells beside it."""
    text = PAGE.read_text(encoding="utf-8").partition("### When a consumer is killed")[2]
    rows = [line.strip("|").split("|") for line in text.splitlines() if line.startswith("|")]
    return {cells[0].strip(): [cell.strip() for cell in cells[1:]] for cells in rows[2:6]}


def find_seconds(text: str) -> list[int]:
    return [int(number) for number in re.findall(r"(\d+) s\b", text)]


def test_waits_of_the_page_follow_from_the_defaults() -> None:
    table, session_s = read_table(), CONSUMER["session_timeout_ms"].default // 1000
    delay_s = GROUP["rebalance.delay.ms"].default // 1000
    watch_s = (attendance.MAX_READ_GAP_MS + 2 * CONSUMER["heartbeat_interval_ms"].default) // 1000
    assert GROUP["scheduled.rebalance.max.delay.ms"].default == 0
    initial_s = GROUP["group.initial.rebalance.delay.ms"].default // 1000
    here, elsewhere, stopped, static = (table[row] for row in list(table))
    assert [find_seconds(cell) for cell in here] == [[1, initial_s], [1, 1 + delay_s]]
    assert [find_seconds(cell) for cell in elsewhere] == [[session_s], [session_s + delay_s]]
    assert [find_seconds(cell) for cell in stopped] == [[session_s, watch_s], [delay_s]]
    assert [find_seconds(cell) for cell in static] == [[0, session_s], [0, session_s + delay_s]]
