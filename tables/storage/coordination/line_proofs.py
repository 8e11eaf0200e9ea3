"""The objects `mailbox/proof-<random>`: a client shows with one that it may write to the namespace.

Whoever may put a letter may put a proof, and nobody else. A proof is the digest of a secret, so reading it does not
help another client. The leader removes a proof that it has accepted, and proofs that their clients have left behind.
"""

from __future__ import annotations

import secrets

from ..object_stores.files import Files
from .mailbox import LETTERS, PROOF_NAME

MAX_PROOF_BYTES = 64
ABANDONED_AFTER_MS = 600_000
"""Age at which a proof belongs to no greeting any more. A greeting takes seconds."""

_MOST_REMOVED = 1_000


def put_proof(files: Files, digest: bytes) -> str:
    """Put a proof, and return its name. Raises OSError."""
    name = f"{LETTERS}/proof-{secrets.token_hex(16)}"
    files.put(name, digest, durable=False)
    return name


def read_proof(files: Files, name: str) -> bytes | None:
    """Return the digest; None if there is no such proof.

    Raises ValueError if the name is not one of a proof: strangers send names.
    """
    _check_name(name)
    try:
        return files.get(name, MAX_PROOF_BYTES)
    except FileNotFoundError:
        return None


def remove_proof(files: Files, name: str) -> None:
    """Remove a proof. Raises OSError; ValueError if the name is not one of a proof."""
    _check_name(name)
    files.delete([name])


def remove_abandoned_proofs(files: Files) -> None:
    """Remove proofs of clients that ended in the middle of a greeting. Raises OSError."""
    proofs = [name for name in files.list(LETTERS) if PROOF_NAME.fullmatch(name.rpartition("/")[2])][:_MOST_REMOVED]
    if proofs:
        limit_ms = files.time_ms() - ABANDONED_AFTER_MS
        written_ms = {name: files.modified_ms(name) for name in proofs}
        files.delete(name for name, at_ms in written_ms.items() if at_ms is not None and at_ms < limit_ms)


def _check_name(name: str) -> None:
    folder, _, base_name = name.partition("/")
    if folder != LETTERS or not PROOF_NAME.fullmatch(base_name):
        raise ValueError(f"name of a proof: found {name!r}, expected {LETTERS}/{PROOF_NAME.pattern}")
