"""The settings `line.listen` and `line.advertise`: where a leader accepts clients over TCP."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass

from ..protocol.errors import InvalidConfig
from .config import EngineConfig

_MAX_PORT = 65_535


@dataclass(frozen=True)
class LineSettings:
    """Where a leader listens, and where clients connect.

    Attributes:
        listen_host, listen_port: the address of the socket. Port 0: any free one.
        connect_host, connect_port: the address for clients. Port 0: the port of the socket.
    """

    listen_host: str
    listen_port: int
    connect_host: str
    connect_port: int


def read_line_settings(config: EngineConfig) -> LineSettings | None:
    """Return where to listen; None if the settings name no address. Raises InvalidConfig."""
    listen, advertise = config.text("line.listen"), config.text("line.advertise")
    if not listen:
        if advertise:
            raise InvalidConfig(
                "line.advertise has no effect without line.listen.", found=f"line.advertise {advertise}"
            )
        return None
    listen_host, listen_port = _split_address("line.listen", listen)
    if advertise:
        return LineSettings(listen_host, listen_port, *_split_address("line.advertise", advertise))
    if _is_wildcard(listen_host):
        raise InvalidConfig(
            "line.listen accepts connections on all addresses of this machine, and none of them is known to clients.",
            found=f"line.listen {listen}",
            expected="line.advertise, with a name or an address of this machine",
        )
    return LineSettings(listen_host, listen_port, listen_host, 0)


def _is_wildcard(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _split_address(key: str, text: str) -> tuple[str, int]:
    """Return host and port of `host:port`, `[host]:port` or a host alone, which has port 0."""
    host, port = text, ""
    if not text.endswith("]") and ":" in text:
        host, _, port = text.rpartition(":")
    number = int(port or 0)
    if number > _MAX_PORT:
        raise InvalidConfig(f"{key} has no valid port.", found=port, expected=f"0 to {_MAX_PORT}")
    return host.strip("[]"), number
