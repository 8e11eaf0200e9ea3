"""Connect to the leader at the address in its line object: over a Unix socket, or over TCP.

Over TCP a client trusts the leader by the fingerprint of its certificate, before it sends anything, on its own machine
too: when a leader has died, any user may listen on its port. The leader trusts the client because of a proof in the
mailbox.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import secrets
import socket
import ssl
import weakref
from contextlib import suppress
from typing import Protocol

from msgspec.structs import replace

from lakemq.tables.storage.coordination import tcp_sockets, unix_sockets
from lakemq.tables.storage.coordination.line_proofs import put_proof
from lakemq.tables.storage.object_stores.files import Files, LocalFiles

from ...namespace.line_frames import Hello, LineAddress, compute_proof

_SECRET_BYTES = 32


class WrongLeader(ValueError):
    """A process listens at the leader's address, and has not shown the leader's certificate."""


class OpenLine(Protocol):
    """A client's end of a line."""

    def close(self) -> None: ...


_open_lines: weakref.WeakSet[OpenLine] = weakref.WeakSet()


def close_in_forked_child(line: OpenLine) -> None:
    """Have each forked child close its copy of this line, which would else stay open for as long as the child lives."""
    _open_lines.add(line)


def _close_in_child() -> None:
    for line in list(_open_lines):
        with suppress(OSError):
            line.close()


os.register_at_fork(after_in_child=_close_in_child)


def connect_to_leader(
    files: Files, address: LineAddress, client_id: str, unix_timeout_s: float, tcp_timeout_s: float
) -> tuple[socket.socket, Hello] | None:
    """Return a connection and the hello to send; None if the leader cannot be reached from here.

    Args:
        unix_timeout_s, tcp_timeout_s: for connecting by each kind of socket, TLS included.

    Raises:
        OSError, ValueError: the leader does not answer.
        WrongLeader: another process answers. Nothing was sent to it.
    """
    hello = Hello(address.namespace_id, address.epoch, address.token, client_id)
    if address.socket and isinstance(files, LocalFiles):
        try:
            return unix_sockets.connect(os.path.join(files.root, address.socket), unix_timeout_s), hello
        except OSError:  # on a network disk the socket may be another machine's
            if not address.port:
                raise
    if not address.port:
        return None
    connection = _connect_by_tcp(address, tcp_timeout_s)
    try:
        hello = replace(hello, secret=secrets.token_bytes(_SECRET_BYTES))
        # the connection comes first: where there is none, no object is left behind
        proof = put_proof(files, compute_proof(hello))
    except BaseException:
        connection.close()
        raise
    return connection, replace(hello, proof=proof)


def _connect_by_tcp(address: LineAddress, timeout_s: float) -> socket.socket:
    if not address.fingerprint:
        raise WrongLeader("the address has no fingerprint of a certificate, and nothing is sent without TLS")
    connection = tcp_sockets.connect(address.host, address.port, timeout_s)
    try:
        return _begin_tls(connection, address.fingerprint)
    except BaseException:
        connection.close()
        raise


def _begin_tls(connection: socket.socket, fingerprint: str) -> ssl.SSLSocket:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    # no authority knows the certificate, and its name says nothing: the fingerprint is compared instead
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    try:
        encrypted = context.wrap_socket(connection)
    except ssl.SSLEOFError:  # a leader that ends
        raise
    except ssl.SSLError as error:
        raise WrongLeader(f"no TLS is spoken there ({error})") from error
    certificate = encrypted.getpeercert(binary_form=True) or b""
    presented = hashlib.sha256(certificate).hexdigest()
    if not hmac.compare_digest(presented, fingerprint):
        encrypted.close()
        raise WrongLeader(f"found a certificate with fingerprint {presented}, expected {fingerprint}")
    return encrypted
