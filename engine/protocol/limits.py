"""What the engine's settings allow, for those decisions that depend on it; folding never does."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """How long silence lasts before something is forgotten, and the longest a transaction may ask to stay open."""

    client_expiration_ms: int = 3_600_000
    producer_id_expiration_ms: int = 86_400_000
    transactional_id_expiration_ms: int = 604_800_000
    transaction_max_timeout_ms: int = 900_000


DEFAULT_LIMITS = Limits()
