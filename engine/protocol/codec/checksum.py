"""The checksum of letters and steps: XXH3 in 64 bits."""

from __future__ import annotations

import xxhash

CHECKSUM_BYTES = 8


def compute_checksum(*parts: bytes | memoryview) -> bytes:
    """Return the checksum of these bytes, one part after the other."""
    checksum = xxhash.xxh3_64()
    for part in parts:
        checksum.update(part)
    return checksum.digest()


def verify_checksum(stored: bytes | memoryview, *parts: bytes | memoryview) -> None:
    """Raise ValueError if the parts do not have the checksum that is stored with them."""
    if (actual := compute_checksum(*parts)) != stored:
        raise ValueError(f"the bytes have the checksum {actual.hex()}, expected {stored.hex()}")
