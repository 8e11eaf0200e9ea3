"""Topics, groups, batches and results show themselves in notebooks as tables, in which all text is escaped."""

import re
from html import unescape
from pathlib import Path
from typing import Any

import pyarrow as pa
from unit.served import served


def read_table(shown: Any) -> tuple[str, list[list[str]]]:
    """Return the caption and the cells of what an object shows."""
    html = shown._repr_html_()
    (caption,) = re.findall("<caption>(.*?)</caption>", html)
    rows = re.findall("<tr>(.*?)</tr>", html)
    return unescape(caption), [[unescape(cell) for cell in re.findall("<t[hd]>(.*?)</t[hd]>", row)] for row in rows]


def test_topics_groups_batches_and_results_show_themselves_as_tables(tmp_path: Path) -> None:
    with served(tmp_path) as mq:
        described = mq.topics.create("orders", config={"retention.ms": 86_400_000})
        with mq.producer() as producer:
            for number in range(30):
                producer.send("orders", f"<script>{number}", key=b"\xff")
            report = producer.flush()
        assert read_table(report) == (
            "0 rows rejected, 0 waiting",
            [["topic", "partition", "first_offset", "last_offset", "record_count"], ["orders", "0", "0", "29", "30"]],
        )
        published = mq.publish("orders", pa.table({"value": ["x" * 300]}))
        assert read_table(published)[1][1] == ["orders", "0", "30", "1"]
        caption, rows = read_table(mq.topics)
        assert (caption, rows[1][:3]) == ("1 topics", ["orders", "1", "31"])
        assert ["partitions", "1"] in read_table(described)[1]
        result = mq.fetch("orders")
        caption, rows = read_table(result)
        assert (caption, len(rows)) == ("20 of 31 messages", 21)
        assert [rows[1][rows[0].index(name)] for name in ("offset", "key", "value")] == ["0", "\\xff", "<script>0"]
        assert "<script>" not in result._repr_html_()
        assert read_table(mq.fetch("orders", start=30))[1][1][5] == "x" * 200 + "…"
        with mq.consumer("ship", topics=["orders"], protocol="cooperative") as consumer:
            batch = consumer.poll(timeout_ms=20_000)
            assert read_table(batch)[0] == "20 of 31 messages"
            assert read_table(consumer.poll()) == ("0 messages", [rows[0]])
            consumer.commit(batch)
            assert read_table(mq.groups)[1][1] == ["ship", "cooperative", "Stable", "1", "0"]
            assert ["members", "1"] in read_table(mq.groups.describe("ship"))[1]
        assert repr(result).startswith("<lakemq.")
