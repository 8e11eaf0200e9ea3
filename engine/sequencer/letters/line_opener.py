"""Open the lines of a term: the sockets of the leader, and the object that leads clients to them.

On a disk the leader has a Unix socket in the namespace's folder. It is named by the epoch and at random, so that no
leader can take it for its own or remove a newer one. With `line.listen` it also has a TCP socket, on a disk or a store.
"""

import hashlib
import logging
import os
import secrets
import ssl
import threading
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from lakemq.tables.storage.coordination import sockets
from lakemq.tables.storage.coordination.sockets import LINES_FOLDER, line_name, remove_older_lines
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

from ...namespace.clock import Clock
from ...namespace.extras import needs
from ...namespace.line_frames import LineAddress, LineSettings, decode_address, encode_address
from ...protocol.errors import MissingExtra
from .line_table import LineListener
from .lines import LineServer

log = logging.getLogger("lakemq.serve")

# The certificate of one term: made when the term begins, and never stored.
#
# Clients do not ask an authority about it. They compare it with the fingerprint in the object of the line, which only
# the leader could put there.


_LIFETIME = timedelta(days=3650)
"""Clients do not look at it: clocks of machines differ, and a term may be long."""


def make_tls_context() -> tuple[ssl.SSLContext, str]:
    """Return a context for a leader with a new certificate, and the certificate's fingerprint.

    Raises MissingExtra without the package `cryptography`; OSError if the system refuses.
    """
    certificate, key, fingerprint = _make_certificate()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # Tickets resume a session on a later connection, which a line never does.
    context.num_tickets = 0
    # ssl reads only files. This one is in memory, so that the key is never on a disk.
    descriptor = os.memfd_create("lakemq-line", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "wb", closefd=False) as file:
            file.write(key + certificate)
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
    return context, fingerprint


def _make_certificate() -> tuple[bytes, bytes, str]:
    """Return certificate and key as PEM, and the fingerprint."""
    with needs("tls"):
        from cryptography import x509  # only leaders that listen to other machines need it
        from cryptography.hazmat.primitives import hashes
        from cryptography.hazmat.primitives.asymmetric import ec
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat
        from cryptography.x509.oid import NameOID
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "lakemq-line")])
    now = datetime.now(UTC)
    certificate = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=1))
        .not_valid_after(now + _LIFETIME)
        .sign(key, hashes.SHA256())
    )
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    fingerprint = hashlib.sha256(certificate.public_bytes(Encoding.DER)).hexdigest()
    return certificate.public_bytes(Encoding.PEM), private, fingerprint


# Open the lines of a term.


AGAIN_S = 5.0
"""Time until a socket or an announcement that has failed is tried again.

A term may last for weeks. An outage takes seconds, and so may a process that has the port.
"""


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

    A socket that cannot be had now is tried again until the term ends.

    Args:
        step_began_ms: when the step of the take-over began, by the steady clock.
        news: is set when a letter has come.
        settings: where to listen for other machines. None: nowhere.
    """
    if settings is None and not isinstance(files, LocalFiles):
        return None
    opener = _LineOpener(files, LineAddress(namespace_id, epoch, secrets.token_hex(16)), settings)
    listeners = opener.listen()
    for reason in opener.address.missing:
        log.warning("Clients use the mailbox where they have no other line: %s. It is tried again.", reason)
    try:
        lines = LineServer(listeners, files, opener.address, lease_ms, step_began_ms, news, clock, opener.withdraw)
    except (OSError, RuntimeError) as error:  # no descriptor, no thread
        for listener in listeners:
            listener.listening_socket.close()
        log.warning("Clients use the mailbox only, because their line cannot be served: %s", error)
        return None
    try:
        opener.announce()
    except OSError as error:
        log.warning("Clients use the mailbox until their line can be announced. It is tried again: %s", error)
    opener.try_again(lines)
    return lines


class _LineOpener:
    """Opens the sockets of one term, and leads clients to them.

    Attributes:
        address: where clients connect, and what is missing.
    """

    def __init__(self, files: Files, address: LineAddress, settings: LineSettings | None) -> None:
        self._files, self.address, self._settings = files, address, settings
        self._announced: LineAddress | None = None
        self._has_ended = threading.Event()

    def listen(self) -> list[LineListener]:
        """Return listeners for the sockets that are missing, as far as they can be had."""
        listeners, reasons = [], []
        if isinstance(self._files, LocalFiles) and not self.address.socket:
            try:
                listeners.append(self._listen_on_unix_socket(self._files))
            except OSError as error:
                reasons.append(f"no socket can be made in {LINES_FOLDER} for clients of this machine ({error})")
        if self._settings is not None and not self.address.port:
            try:
                listeners.append(self._listen_on_tcp(self._settings))
            except (OSError, MissingExtra) as error:
                place = f"{self._settings.listen_host}:{self._settings.listen_port}"
                reasons.append(f"line.listen {place} cannot be used for clients of other machines ({error})")
        self.address = replace(self.address, missing=tuple(reasons))
        return listeners

    def _listen_on_unix_socket(self, files: LocalFiles) -> LineListener:
        name = f"{line_name(self.address.epoch)}-{secrets.token_hex(4)}.sock"
        os.makedirs(os.path.join(files.root, LINES_FOLDER), exist_ok=True)
        listener = LineListener(sockets.listen_unix(os.path.join(files.root, name)))
        self.address = replace(self.address, socket=name, folder=sockets.identify_folder(files.root))
        return listener

    def _listen_on_tcp(self, settings: LineSettings) -> LineListener:
        context, fingerprint = make_tls_context()
        listening_socket = sockets.listen_tcp(settings.listen_host, settings.listen_port)
        port = settings.connect_port or listening_socket.getsockname()[1]
        log.info("Clients of other machines connect to %s:%d", settings.connect_host, port)
        self.address = replace(self.address, host=settings.connect_host, port=port, fingerprint=fingerprint)
        return LineListener(listening_socket, is_tcp=True, context=context)

    def announce(self) -> None:
        """Put the object that leads clients here, unless it is there. Raises OSError."""
        if self._announced == self.address:
            return
        name, body = line_name(self.address.epoch), encode_address(self.address)
        try:
            self._files.put(name, body, durable=False)
        except FileExistsError:  # the object of fewer sockets, or of an earlier leader in a restored folder
            self._files.delete([name])
            self._files.put(name, body, durable=False)
        self._announced = self.address

    def try_again(self, lines: LineServer) -> None:
        """Open and announce what is missing in a thread of its own, until the term ends. Steps must not wait for it."""
        if self._is_complete():
            return
        try:
            threading.Thread(target=self._retry, args=[lines], name="lakemq-line-opener", daemon=True).start()
        except RuntimeError as error:  # the system gives no thread
            log.warning("Clients use the mailbox where they have no line, because it cannot be tried again: %s", error)

    def _is_complete(self) -> bool:
        return not self.address.missing and self._announced == self.address

    def _retry(self, lines: LineServer) -> None:
        while not self._is_complete() and not self._has_ended.wait(AGAIN_S):
            for listener in self.listen():
                lines.add_listener(listener)
            try:
                self.announce()
            except OSError as error:
                log.debug("The line cannot be announced yet: %s", error)
        if self._has_ended.is_set():  # the term has ended meanwhile, maybe before these were there to be removed
            self.withdraw()

    def withdraw(self) -> None:
        """Remove the object and the socket. An error of the store leaves litter for the next leader."""
        self._has_ended.set()
        name = line_name(self.address.epoch)
        with suppress(OSError, ValueError):
            if self.address.socket:
                self._files.delete([self.address.socket])
            # A namespace that was created again at this path may have an object of the same name.
            if decode_address(self._files.get(name)).token == self.address.token:
                self._files.delete([name])


def remove_old_lines(files: Files, epoch: int) -> None:
    """Remove what leads clients to leaders before this epoch, whose take-over has landed.

    Also a leader without lines must call it: clients would wait for the welcome of a stopped process again and again.
    """
    try:
        remove_older_lines(files, epoch)
    except OSError as error:
        log.warning("Clients may look in vain for an earlier leader, whose line cannot be removed: %s", error)
