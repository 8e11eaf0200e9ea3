"""Payloads as text, and charts as numbers."""

import json
import re
import tracemalloc
from datetime import UTC, datetime, timedelta

import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lakemq.jobs.console.parts import (
    HEIGHT,
    MOST_ROWS,
    WIDTH,
    Field,
    Form,
    Link,
    Notice,
    OwnershipPeriod,
    Page,
    Table,
    draw_bars,
    draw_ownership,
    format_length,
    make_link,
    make_templates,
)
from lakemq.jobs.console.payloads import LONG_CHARACTERS, escape_invisible, indent_json, show_payload
from lakemq.jobs.output import format_size

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda children: st.lists(children) | st.dictionaries(st.text(), children),
    max_leaves=20,
)


def test_payloads_are_shown_by_their_kind() -> None:
    cases = [
        (None, "auto", "null", ""),
        (b"", "auto", "text", ""),
        (b"plain", "auto", "text", "plain"),
        (b"12", "auto", "text", "12"),
        (b'{"a":1,"b":[]}', "auto", "json", '{\n  "a": 1,\n  "b": []\n}'),
        (b'{"a":1}', "text", "text", '{"a":1}'),
        (b'{"a":1.10000000000000000001}', "auto", "json", '{\n  "a": 1.10000000000000000001\n}'),
        (b"{not json}", "json", "text", "{not json}"),
        (b"\xff\x00A", "auto", "hex", "000000  ff 00 41                                         ..A"),
        (b"\xff", "text", "text", "\\xff"),
        (b"A", "hex", "hex", "000000  41                                               A"),
        (b"a\x1b[31mb", "auto", "text", "a\\x1b[31mb"),
        ("safe\u202etxt.exe".encode(), "auto", "text", "safe\\u202etxt.exe"),
    ]
    views = [show_payload(data, how) for data, how, _, _ in cases]
    assert [(view.kind, view.text) for view in views] == [(kind, text) for _, _, kind, text in cases]
    assert not any(view.is_cut for view in views)


def test_a_long_payload_is_cut_and_says_so() -> None:
    assert show_payload(b"x" * 5_000).is_cut
    assert len(show_payload(b"x" * 5_000).text) == 1_000
    assert show_payload(b"x" * 5_000).size_bytes == 5_000
    assert show_payload("é".encode() * 5_000, most_characters=1_001).kind == "text"
    deep = b"[" * 100_000 + b"]" * 100_000
    assert show_payload(deep, most_characters=200_000).kind == "text"


@pytest.mark.slow
@given(JSON)
@examples(200)
def test_indented_json_means_the_same(document: object) -> None:
    text = json.dumps(document, ensure_ascii=False)
    assert json.loads(indent_json(text, 1 << 20)) == document
    assert indent_json(text, 10) == indent_json(text, 1 << 20)[:10]


def test_deep_payload_is_indented_no_further_than_it_is_shown() -> None:
    """Each of its half a million lines would begin with 1,800 spaces."""
    deep = b'{"a":' * 900 + b"[" + b"1," * 500_000 + b"1]" + b"}" * 900
    tracemalloc.start()
    try:
        view = show_payload(deep, most_characters=LONG_CHARACTERS)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert (view.kind, view.is_cut, len(view.text)) == ("json", True, LONG_CHARACTERS)
    assert peak_bytes < 50 << 20


@given(st.binary(max_size=3_000), st.sampled_from(["auto", "text", "json", "hex"]))
@examples(200)
def test_any_bytes_are_shown_without_control_characters(data: bytes, how: str) -> None:
    text = show_payload(data, how).text
    assert not re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\xad\u200b-\u200f\u2028-\u202e\u2060-\u2064\u2066-\u206f]", text)


def test_characters_that_reorder_text_are_escaped() -> None:
    assert escape_invisible("a\u2066b\tc\nd\x85") == "a\\u2066b\tc\nd\\x85"


def test_characters_that_show_nothing_are_escaped_and_letters_and_spaces_of_all_languages_stay() -> None:
    for character in "\u00ad\u200b\u2028\u2060\u3164\u034f\U000e0041":
        assert escape_invisible(f"id{character}") == "id" + character.encode("unicode_escape").decode()
    text = "e\u0301 \u00a0 \u3000 \u4e2d\u6587 \U0001f600\ufe0f \u0627\u0644"
    assert escape_invisible(text) == text


def test_pages_escape_invisible_characters_wherever_text_stands_and_forms_keep_them() -> None:
    name = "id\u202egpj"
    form = Form("Reset", "/x", [Field("id", name, name), Field("id", name, name, is_hidden=True)], name, "get")
    page = Page(name, [Table(name, ["header", name], [(name, Link(name, "/x"))]), Notice(name, "bad"), form])
    names = ("menu", "path", "silence", "allow_changes", "refresh", "refresh_links", "done", "csrf_field")
    context = dict.fromkeys(names, "") | {"page": page, "namespace": name, "make_csrf": lambda action: ""}
    html = make_templates().get_template("page.html").render(context)
    shown = re.sub('value="[^"]*"', "", html)
    assert "\u202e" not in shown
    assert html.count(f'value="{name}"') == 2


def test_bars_are_as_high_as_their_values() -> None:
    chart = draw_bars("T", [("a", 1), ("b", 0), ("c", 4)], "things")
    assert [bar.height for bar in chart.bars] == [HEIGHT / 4, HEIGHT]
    assert all(bar.x >= 0 and bar.x + bar.width <= WIDTH and 0 <= bar.y < HEIGHT for bar in chart.bars)
    assert [bar.title for bar in chart.bars] == ["a: 1 things", "c: 4 things"]
    assert chart.description == "T: at most 4 things, 5 in all"
    assert draw_bars("T", [], "things").bars == []
    rates = draw_bars("T", [("a", 1), ("b", 0), ("c", 4)], "per second", are_rates=True)
    assert rates.description == "T: at most 4 per second, 1.667 on average", "a sum of rates means nothing"


def test_owners_are_drawn_from_when_to_when_they_had_a_partition() -> None:
    begin = datetime(2030, 1, 1, tzinfo=UTC)
    end = begin + timedelta(minutes=10)
    periods = [
        OwnershipPeriod("t-0", "a", begin - timedelta(hours=1), begin + timedelta(minutes=5), "joined"),
        OwnershipPeriod("t-0", "b", begin + timedelta(minutes=5), None, "handoff"),
        OwnershipPeriod("t-1", "a", begin - timedelta(hours=2), begin - timedelta(hours=1), "joined"),
    ]
    first, second = draw_ownership("T", periods, begin, end).bars
    assert (first.width, second.width) == (second.width, first.width)
    assert first.x + first.width == pytest.approx(second.x)
    assert second.x + second.width == pytest.approx(WIDTH)
    assert first.colour != second.colour


def test_figures_have_units_that_suit_them() -> None:
    assert [format_size(n) for n in (0, 1023, 1536, 5 << 20, 3 << 30)] == ["0 B", "1023 B", "1.5 kB", "5 MB", "3 GB"]
    assert [format_length(n) for n in (None, 0, 950, 1_500, 90_000, 86_400_000)] == [
        "-",
        "0 ms",
        "950 ms",
        "1.5 s",
        "1.5 min",
        "1 d",
    ]


def test_a_table_shows_a_bounded_number_of_rows() -> None:
    template = make_templates().from_string('{% import "parts.html" as draw %}{{ draw.table(table) }}')
    page = template.render(table=Table("T", ("n",), [[n] for n in range(MOST_ROWS + 7)]))
    assert page.count("<td") == MOST_ROWS
    assert "7 more rows are not shown." in page


def test_inputs_of_a_link_are_quoted() -> None:
    assert make_link("/group", name="a&b=c d", minutes=None) == "/group?name=a%26b%3Dc+d"
    assert make_link("/topics") == "/topics"
