"""Tokens that prove that a form was filled on a page of this console: they protect changes against other sites.

A page sets a random cookie, and puts a keyed hash of the cookie and of the form's address into the form. Another site
can neither read the cookie nor compute the hash. The key is new with each process, which remembers nothing.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets

COOKIE = "lakemq_form"
FIELD = "csrf"
_NONCE_CHARACTERS = 43


class FormTokens:
    """Makes and checks the tokens of forms."""

    def __init__(self) -> None:
        self._key = secrets.token_bytes(32)

    def choose_nonce(self, cookie: str | None) -> str:
        """Return the nonce of a browser: the one that it has, or a new one."""
        return cookie if cookie is not None and len(cookie) == _NONCE_CHARACTERS else secrets.token_urlsafe(32)

    def make(self, nonce: str, path: str) -> str:
        """Return the token of a form that is sent to this path."""
        return hmac.new(self._key, f"{nonce} {path}".encode(), hashlib.sha256).hexdigest()

    def is_valid(self, cookie: str | None, path: str, token: str) -> bool:
        """Return whether a form that was sent to this path carries the right token."""
        if cookie is None:
            return False
        return hmac.compare_digest(token.encode("utf-8", "surrogateescape"), self.make(cookie, path).encode())
