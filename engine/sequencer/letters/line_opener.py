"""Open the lines of a term: the sockets of the leader, and the object that leads clients to them.

On a disk the leader has a Unix socket in the namespace's folder. It is named by the epoch and at random, so that no
leader can take it for its own or remove a newer one. With `line.listen` it also has a TCP socket, on a disk or a store.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from contextlib import suppress

from msgspec.structs import replace

from lakemq.tables.storage.coordination import tcp_sockets, unix_sockets
from lakemq.tables.storage.coordination.line_objects import LINES_FOLDER, line_name, remove_older_lines
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

from ...namespace.line_frames import LineAddress, decode_address, encode_address
from ...namespace.line_settings import LineSettings
from ...namespace.processes.clock import Clock
from ...protocol.errors import MissingExtra
from .line_certificate import make_tls_context
from .line_connections import LineListener
from .lines import LineServer

log = logging.getLogger("lakemq.serve")

ANNOUNCE_AGAIN_S = 10.0
"""Time until an announcement that has failed is tried again. A term may last for weeks, an outage takes seconds."""


def open_term_lines(
    files: Files,
    namespace_id: str,
    epoch: int,
    lease_ms: int,
    step_began_ms: int,
    news: threading.Event,
    clock: Clock,
    settings: LineSettings | None = None,
) -> LineServer | None:
    """Open the lines of a leader whose take-over has landed; None if clients cannot connect here.

    Args:
        step_began_ms: when the step of the take-over began, by the steady clock.
        news: is set when a letter has come.
        settings: where to listen for other machines. None: nowhere.
    """
    address = LineAddress(namespace_id, epoch, secrets.token_hex(16))
    listeners: list[LineListener] = []
    if isinstance(files, LocalFiles):
        address = _listen_on_unix_socket(files, address, listeners)
    if settings is not None:
        address = _listen_on_tcp(settings, address, listeners)
    if not listeners:
        return None

    has_ended = threading.Event()

    def withdraw() -> None:
        has_ended.set()
        _withdraw(files, address)

    try:
        lines = LineServer(listeners, files, address, lease_ms, step_began_ms, news, clock, withdraw)
    except (OSError, RuntimeError) as error:  # no descriptor, no thread
        for listener in listeners:
            listener.listening_socket.close()
        log.warning("Clients use the mailbox only, because their line cannot be served: %s", error)
        return None
    try:
        _announce(files, address)
    except OSError as error:
        log.warning("Clients use the mailbox until their line can be announced. It is tried again: %s", error)
        _announce_later(files, address, has_ended)
    return lines


def _listen_on_unix_socket(files: LocalFiles, address: LineAddress, listeners: list[LineListener]) -> LineAddress:
    """Add a Unix socket to the listeners, and return the address with it. Without one, return it as before."""
    name = f"{line_name(address.epoch)}-{secrets.token_hex(4)}.sock"
    try:
        os.makedirs(os.path.join(files.root, LINES_FOLDER), exist_ok=True)
        listeners.append(LineListener(unix_sockets.listen(os.path.join(files.root, name))))
    except OSError as error:
        log.warning(
            "Clients of this machine have no line before the next leader, because no socket can be made in %s: %s",
            LINES_FOLDER,
            error,
        )
        return address
    return replace(address, socket=name)


def _listen_on_tcp(settings: LineSettings, address: LineAddress, listeners: list[LineListener]) -> LineAddress:
    """Add a TCP socket to the listeners, and return the address with it. Without one, return it as before."""
    try:
        context, fingerprint = make_tls_context() if settings.needs_tls else (None, "")
        listening_socket = tcp_sockets.listen(settings.listen_host, settings.listen_port)
    except (OSError, MissingExtra) as error:
        log.warning(
            "Clients of other machines use the mailbox only, because line.listen %s:%d cannot be used: %s",
            settings.listen_host,
            settings.listen_port,
            error,
        )
        return address
    listeners.append(LineListener(listening_socket, is_tcp=True, context=context))
    port = settings.connect_port or listening_socket.getsockname()[1]
    log.info("Clients of other machines connect to %s:%d", settings.connect_host, port)
    return replace(address, host=settings.connect_host, port=port, fingerprint=fingerprint)


def remove_old_lines(files: Files, epoch: int) -> None:
    """Remove what leads clients to leaders before this epoch, whose take-over has landed.

    Also a leader without lines must call it: clients would wait for the welcome of a stopped process again and again.
    """
    try:
        remove_older_lines(files, epoch)
    except OSError as error:
        log.warning("Clients may look in vain for an earlier leader, whose line cannot be removed: %s", error)


def _announce(files: Files, address: LineAddress) -> None:
    name, body = line_name(address.epoch), encode_address(address)
    try:
        files.put(name, body, durable=False)
    except FileExistsError:  # in a folder that was restored from a backup, with an earlier leader's object
        files.delete([name])
        files.put(name, body, durable=False)


def _announce_later(files: Files, address: LineAddress, has_ended: threading.Event) -> None:
    """Announce the line beside the steps, which must not wait for the store, until it succeeds or the term ends."""

    def announce() -> None:
        while not has_ended.wait(ANNOUNCE_AGAIN_S):
            try:
                _announce(files, address)
            except OSError as error:
                log.debug("The line cannot be announced yet: %s", error)
                continue
            if has_ended.is_set():  # the term has ended meanwhile, maybe before the object was there to be removed
                _withdraw(files, address)
            return

    try:
        threading.Thread(target=announce, name="lakemq-announce", daemon=True).start()
    except RuntimeError as error:  # the system gives no thread
        log.warning("Clients use the mailbox only, because their line cannot be announced: %s", error)


def _withdraw(files: Files, address: LineAddress) -> None:
    """Remove the object and the socket. An error of the store leaves litter for the next leader."""
    name = line_name(address.epoch)
    with suppress(OSError, ValueError):
        if address.socket:
            files.delete([address.socket])
        # A namespace that was created again at this path may have an object of the same name.
        if decode_address(files.get(name)) == address:
            files.delete([name])
