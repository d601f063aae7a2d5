"""The self-signed certificate of the test servers, valid for 127.0.0.1."""

import ssl
from pathlib import Path

FIXTURES = Path(__file__).parent / "fixtures"
CERTIFICATE, KEY = str(FIXTURES / "tls_cert.pem"), str(FIXTURES / "tls_key.pem")
TLS_FLAGS = ("--ssl_cert", CERTIFICATE, "--ssl_key", KEY)


def trusting_context() -> ssl.SSLContext:
    """For a client that accepts this certificate under any host name."""
    context = ssl.create_default_context(cafile=CERTIFICATE)
    context.check_hostname = False
    return context
