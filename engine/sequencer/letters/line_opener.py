"""Open the lines of a term: a Unix socket in the namespace's folder, and the object that names it.

The socket is named by the epoch and at random, so that no leader can take it for its own or remove a newer one.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from contextlib import suppress

from lakemq.tables.storage.coordination.line_objects import LINES_FOLDER, line_name, remove_older_lines
from lakemq.tables.storage.coordination.unix_sockets import listen
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

from ...namespace.line_frames import LineAddress, decode_address, encode_address
from ...namespace.processes.clock import Clock
from .lines import LineServer

log = logging.getLogger("lakemq.serve")


def open_term_lines(
    files: Files,
    namespace_id: str,
    epoch: int,
    lease_ms: int,
    step_began_ms: int,
    news: threading.Event,
    clock: Clock,
) -> LineServer | None:
    """Open the lines of a leader whose take-over has landed; None if clients cannot connect here.

    Args:
        step_began_ms: when the step of the take-over began, by the steady clock.
        news: is set when a letter has come.
    """
    if not isinstance(files, LocalFiles):
        return None
    name = f"{line_name(epoch)}-{secrets.token_hex(4)}.sock"
    address = LineAddress(namespace_id, epoch, secrets.token_hex(16), name)
    try:
        os.makedirs(os.path.join(files.root, LINES_FOLDER), exist_ok=True)
        listener = listen(os.path.join(files.root, name))
    except OSError as error:
        log.info("Clients use the mailbox only, because no socket can be made in %s: %s", LINES_FOLDER, error)
        return None
    try:
        lines = LineServer(listener, address, lease_ms, step_began_ms, news, clock, lambda: _withdraw(files, address))
    except (OSError, RuntimeError) as error:  # no descriptor, no thread
        listener.close()
        log.warning("Clients use the mailbox only, because their line cannot be served: %s", error)
        return None
    try:
        _announce(files, address)
    except OSError as error:
        log.warning("Clients use the mailbox only, because their line cannot be announced: %s", error)
        lines.close()
        return None
    return lines


def remove_old_lines(files: Files, epoch: int) -> None:
    """Remove what leads clients to leaders before this epoch, whose take-over has landed.

    Also a leader without lines must call it: clients would wait for the welcome of a stopped process again and again.
    """
    if isinstance(files, LocalFiles):
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


def _withdraw(files: Files, address: LineAddress) -> None:
    """Remove the object and the socket. An error of the store leaves litter for the next leader."""
    name = line_name(address.epoch)
    with suppress(OSError, ValueError):
        files.delete([address.socket])
        # A namespace that was created again at this path may have an object of the same name.
        if decode_address(files.get(name)) == address:
            files.delete([name])
