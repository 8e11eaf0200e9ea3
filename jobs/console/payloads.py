"""Show keys and values of messages: bytes as text, as indented JSON, or as hexadecimal digits. Never as HTML."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass

import msgspec

FORMATS = ("auto", "text", "json", "hex")

SHORT_CHARACTERS = 1_000
"""How much of a payload a list shows."""

LONG_CHARACTERS = 256 << 10
"""How much of a payload the page of one message shows."""

_HEX_ROW = 16
_MOST_SPACES = 4 << 20
_JSON_TOKEN = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\],]')
"""A text of JSON, or what begins or ends a line when the document is indented."""
_OBEYED_OR_HIDDEN = ("Cc", "Cf", "Cs", "Zl", "Zp")
"""Categories of characters that a screen obeys, or that it does not show."""
_BLANK_LETTERS = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u3164\uffa0")
"""Letters and marks of Unicode that look like nothing."""


@dataclass(frozen=True)
class PayloadView:
    """A payload as a page shows it.

    Attributes:
        kind: null, text, json or hex.
        text: plain text; the template escapes it.
        size_bytes: size of the whole payload.
        is_cut: whether the text shows only its beginning.
    """

    kind: str
    text: str
    size_bytes: int
    is_cut: bool


def show_payload(data: bytes | None, how: str = "auto", most_characters: int = SHORT_CHARACTERS) -> PayloadView:
    """Return a payload as text.

    Args:
        data: the bytes; None is a payload without a value.
        how: auto, text, json or hex. `auto` and `json` fall back to what the bytes are.
        most_characters: where the text is cut.
    """
    if data is None:
        return PayloadView("null", "", 0, False)
    text = None if how == "hex" else _decode(data[: 4 * most_characters], is_whole=len(data) <= 4 * most_characters)
    if text is None and how == "text":
        text = data[: 4 * most_characters].decode("utf-8", "backslashreplace")
    if text is None:
        rows = "\n".join(_dump_rows(data[: most_characters // 4]))
        return PayloadView("hex", rows, len(data), len(data) > most_characters // 4)
    kind = "text"
    if how != "text" and len(data) <= 4 * most_characters and text.lstrip().startswith(("{", "[")):
        with suppress(msgspec.DecodeError, RecursionError):
            kind, text = "json", indent_json(text, most_characters + 1)
    is_cut = len(text) > most_characters or len(data) > 4 * most_characters
    return PayloadView(kind, escape_invisible(text[:most_characters]), len(data), is_cut)


def escape_invisible(text: str) -> str:
    """Return the text with characters escaped that a screen obeys or hides; line ends and tabs stay."""
    return "".join(
        character.encode("unicode_escape").decode()
        if character in _BLANK_LETTERS
        or (unicodedata.category(character) in _OBEYED_OR_HIDDEN and character not in "\n\t")
        else character
        for character in text
    )


def indent_json(text: str, most_characters: int) -> str:
    """Return the first characters of a JSON document with one member per line. Numbers and texts stay as written.

    Raises msgspec.DecodeError or RecursionError: it is no JSON, or nested too deeply.
    """
    return msgspec.json.format(text, indent=2 if _has_room_for_lines(text) else 0)[:most_characters]


def _has_room_for_lines(text: str) -> bool:
    """Return whether lines add few spaces. A megabyte of a deep document would become gigabytes."""
    depth = spaces = 0
    for token in _JSON_TOKEN.finditer(text):
        depth += (token[0] in "{[") - (token[0] in "}]")
        spaces += 0 if token[0][0] == '"' else 2 * depth
        if spaces > _MOST_SPACES:
            return False
    return True


def _decode(data: bytes, is_whole: bool) -> str | None:
    """Return the bytes as text; None if they are not UTF-8. The last character may be cut if they are a beginning."""
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        if is_whole or error.start < len(data) - 3:
            return None
        return data[: error.start].decode()


def _dump_rows(data: bytes) -> Iterator[str]:
    for start in range(0, len(data), _HEX_ROW):
        row = data[start : start + _HEX_ROW]
        shown = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in row)
        yield f"{start:06x}  {row.hex(' '):<{3 * _HEX_ROW - 1}}  {shown}"
