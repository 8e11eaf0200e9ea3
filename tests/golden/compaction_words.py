"""Messages as compaction.yaml writes them, for LakeMQ and for Kafka."""

import random

Content = tuple[bytes | None, bytes | None]
"""Key and value."""


def parse_message(text: str) -> Content:
    """Return the content: `k=v`, `k` without a value, `=v` without a key."""
    key, has_value, value = text.partition("=")
    return key.encode() or None, value.encode() if has_value else None


def show_message(offset: int, key: bytes | None, value: bytes | None) -> str:
    return f"{offset} {(key or b'').decode()}{'' if value is None else '=' + value.decode()}"


def make_fill(first: int, count: int) -> list[Content]:
    """Return messages with keys of their own that cannot be compressed."""
    chance = random.Random(first)
    return [(f"fill-{number}".encode(), chance.randbytes(1_000)) for number in range(first, first + count)]


def is_fill(key: bytes | None) -> bool:
    return (key or b"").startswith(b"fill-")
