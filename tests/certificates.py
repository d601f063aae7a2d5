"""The self-signed certificates of the test servers, valid for 127.0.0.1 and localhost."""

import ssl
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
CERTIFICATE, KEY = str(FIXTURES / "tls_cert.pem"), str(FIXTURES / "tls_key.pem")
RENEWED_CERTIFICATE, RENEWED_KEY = str(FIXTURES / "tls_renewed_cert.pem"), str(FIXTURES / "tls_renewed_key.pem")
TLS_FLAGS = ("--ssl_cert", CERTIFICATE, "--ssl_key", KEY)


def trusting_context(certificate: str = CERTIFICATE) -> ssl.SSLContext:
    """For a client that accepts this certificate."""
    return ssl.create_default_context(cafile=certificate)
