"""Payloads as text, and charts as numbers."""

import json
import re
import tracemalloc

import pyarrow as pa
import pytest
from examples import examples
from hypothesis import given
from hypothesis import strategies as st

from lakemq.jobs.console.pages.messages import read_search, select_messages
from lakemq.jobs.console.parts import Field, Form, Link, Notice, Page, Table, make_templates
from lakemq.jobs.console.payloads import LONG_CHARACTERS, escape_invisible, indent_json, show_payload

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
    deep = b"[" * 1_000_000 + b"]" * 1_000_000
    assert show_payload(deep, most_characters=2_000_000).kind == "text"


@pytest.mark.slow
@given(JSON)
@examples(200)
def test_indented_json_parses_to_the_same_document(document: object) -> None:
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


def test_characters_that_show_nothing_are_escaped_and_letters_and_spaces_of_all_languages_stay() -> None:
    for character in "\u00ad\u200b\u2028\u2060\u3164\u034f\U000e0041":
        assert escape_invisible(f"id{character}") == "id" + character.encode("unicode_escape").decode()
    text = "e\u0301 \u00a0 \u3000 \u4e2d\u6587 \U0001f600\ufe0f \u0627\u0644"
    assert escape_invisible(text) == text


def test_pages_escape_invisible_characters_wherever_text_stands_and_forms_keep_them() -> None:
    name = "id\u202egpj"
    form = Form("Reset", "/x", [Field("id", name, name), Field("id", name, name, is_hidden=True)], name, "get")
    page = Page(name, [Table(name, ["header", name], [(name, Link(name, "/x"))]), Notice(name, "bad"), form])
    names = ("menu", "path", "others", "silence", "allow_changes", "refresh", "refresh_links", "done")
    context = dict.fromkeys(names, "") | {"page": page, "namespace": name}
    html = make_templates().get_template("page.html").render(context)
    shown = re.sub('value="[^"]*"', "", html)
    assert "\u202e" not in shown
    assert html.count(f'value="{name}"') == 2


HEADERS = pa.list_(pa.struct([pa.field("key", pa.string()), pa.field("value", pa.binary())]))


@pytest.mark.parametrize(
    ("header", "rows"), [("a", [1, 3, 4]), ("a=1", [1, 4]), ("a=", [3]), ("b=2", [1]), ("b", [1, 4]), ("c", [])]
)
def test_header_filter_finds_each_message_once_in_all_chunks(header: str, rows: list[int]) -> None:
    headers = [None, [("a", b"1"), ("b", b"2"), ("a", b"1")], [], [("a", b"")], [("b", None), ("a", b"1")]]
    pairs = [None if row is None else [{"key": key, "value": value} for key, value in row] for row in headers]
    chunks = [pa.array(part, HEADERS) for part in (pairs[:2], pairs)]
    messages = pa.table({"row": [-2, -1, *range(5)], "headers": pa.chunked_array(chunks)}).slice(2)
    search = read_search({"topic": "t", "header": header})
    assert select_messages(messages, search)["row"].to_pylist() == rows
    assert select_messages(messages.slice(0, 0), search).num_rows == 0
