"""Certificates for servers of tests, valid for 127.0.0.1 and localhost, and trusted only by clients that name their file."""

import ssl
from pathlib import Path

_FIXTURES = Path(__file__).parent / "fixtures"

CERTIFICATE, KEY = _FIXTURES / "tls_cert.pem", _FIXTURES / "tls_key.pem"
RENEWED_CERTIFICATE, RENEWED_KEY = _FIXTURES / "tls_renewed_cert.pem", _FIXTURES / "tls_renewed_key.pem"


def tls_flags(certificate: Path = CERTIFICATE, key: Path = KEY) -> tuple[str, ...]:
    """Flags of a server that uses the certificate."""
    return ("--ssl_cert", str(certificate), "--ssl_key", str(key))


def trust(certificate: Path = CERTIFICATE) -> ssl.SSLContext:
    """Context of a client that trusts the certificate."""
    return ssl.create_default_context(cafile=str(certificate))
