"""The certificate of one term: made when the term begins, and never stored.

Clients do not ask an authority about it. They compare it with the fingerprint in the object of the line, which only the
leader could put there.
"""

from __future__ import annotations

import hashlib
import os
import ssl
from datetime import datetime, timedelta, timezone

from ...namespace.processes.extras import needs

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
    now = datetime.now(timezone.utc)
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
