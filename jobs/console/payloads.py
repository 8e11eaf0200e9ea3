"""Show keys and values of messages: bytes as text, as indented JSON, or as hexadecimal digits. Never as HTML."""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass

FORMATS = ("auto", "text", "json", "hex")

SHORT_CHARACTERS = 1_000
"""How much of a payload a list shows."""

LONG_CHARACTERS = 256 << 10
"""How much of a payload the page of one message shows."""

_HEX_ROW = 16
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
    if how != "text" and len(data) <= 4 * most_characters and _is_json_document(text):
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
    """Return the first characters of a JSON document with one member per line.

    Numbers and texts stay as they are written. The lines of a deep document are mostly spaces: a megabyte of it would
    become gigabytes.
    """
    tokens: list[str] = []
    room = most_characters
    for token in _indent_tokens(text):
        tokens.append(token)
        room -= len(token)
        if room <= 0:
            break
    return "".join(tokens)[:most_characters]


def _indent_tokens(text: str) -> Iterator[str]:
    depth, is_in_text, is_escaped = 0, False, False
    previous = ""
    for character in text:
        if is_in_text:
            yield character
            is_in_text = is_escaped or character != '"'
            is_escaped = character == "\\" and not is_escaped
            continue
        if character.isspace():
            continue
        if character in "}]":
            depth -= 1
            yield "" if previous in "{[" else "\n" + "  " * depth
        elif previous in ("{", "[", ","):
            yield "\n" + "  " * depth
        yield ": " if character == ":" else character
        depth += character in "{["
        is_in_text, previous = character == '"', character


def _is_json_document(text: str) -> bool:
    """Return whether the text is a JSON object or array. Other values look the same as text."""
    if not text.lstrip().startswith(("{", "[")):
        return False
    try:
        json.loads(text)
    except (ValueError, RecursionError):
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
