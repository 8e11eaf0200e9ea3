"""The settings of a console, checked before it listens."""

from __future__ import annotations

import ipaddress
import os
from dataclasses import dataclass, field
from pathlib import Path

from lakemq.errors import InvalidConfig

TOKEN_VARIABLE = "LAKEMQ_CONSOLE_TOKEN"
SHORTEST_TOKEN = 16
"""Characters. A shorter token could be guessed, as nothing limits the number of attempts over days."""


@dataclass(frozen=True)
class ConsoleSettings:
    """Where a console listens, and what it allows.

    Attributes:
        host, port: the address. Port 0 takes a free one.
        token: bearer token that every request must show; None: no request needs one.
        allow_changes: whether the console may change the namespace.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    token: str | None = field(default=None, repr=False)
    allow_changes: bool = False

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine can reach the address."""
        return is_loopback(self.host)


def make_settings(host: str, port: int, token_file: Path | None, allow_changes: bool) -> ConsoleSettings:
    """Return the settings.

    Args:
        host: the address to listen on.
        port: the port to listen on.
        token_file: a file that holds the token; without it, the environment's LAKEMQ_CONSOLE_TOKEN counts.
        allow_changes: whether the console may change the namespace.

    Raises:
        InvalidConfig: the token is missing, too short, or cannot be read.
    """
    token = _read_token(token_file)
    if token is not None and (len(token) < SHORTEST_TOKEN or not token.isascii() or not token.isprintable()):
        raise InvalidConfig(
            "The console's token cannot be used.",
            found=f"{len(token)} characters",
            expected=f"at least {SHORTEST_TOKEN} printable ASCII characters, such as those of `openssl rand -hex 32`",
        )
    if token is None and (allow_changes or not is_loopback(host)):
        raise InvalidConfig(
            "The console needs a token as soon as other machines can reach it, or if it may change something.",
            found="--allow-changes without a token" if allow_changes else host,
            expected=f"--token-file FILE or ${TOKEN_VARIABLE}; or an address of this machine alone, such as 127.0.0.1,"
            " without --allow-changes",
        )
    return ConsoleSettings(host, port, token, allow_changes)


def _read_token(token_file: Path | None) -> str | None:
    if token_file is None:
        return os.environ.get(TOKEN_VARIABLE) or None
    try:
        return token_file.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidConfig(
            "The file with the console's token cannot be read.",
            found=f"{token_file}: {error}",
            expected="a text file with one line",
        ) from None


def is_loopback(host: str) -> bool:
    """Return whether an address, or the name of a host, is this machine's alone."""
    if host.strip("[]").lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False
