"""TLS contexts of the client, and the errors of connections that could not be made."""

import ssl

from aiohttp import ClientConnectorCertificateError, ClientConnectorError, ClientSession, TCPConnector

from ropewalk.client.errors import CableError, CertificateUntrusted, TlsFailed, Unreachable
from ropewalk.model.errors import UserMistake

NO_TLS = "if no TLS is spoken there, write http:// or ws:// in the place of https:// or wss://"


def tls_context(ca_file: str | None) -> ssl.SSLContext | None:
    """Trusts the certificates in a file. None without a file: the system's. Raises UserMistake if it cannot be read."""
    if not ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one too
        raise UserMistake(f"ca_file must be a file of certificates, and {ca_file!r} cannot be read as one: {error}") from error


def http_session(tls: ssl.SSLContext | None) -> ClientSession:
    """Call it in a running event loop, and close the session."""
    return ClientSession(connector=TCPConnector(ssl=tls or True))


def connection_error(url: str, error: Exception, kind: type[CableError] = Unreachable, hint: str = NO_TLS) -> CableError:
    """The typed error for a failed connection attempt. `kind` is for errors that another attempt may not have."""
    if isinstance(error, ClientConnectorCertificateError):
        return CertificateUntrusted(url, error.certificate_error)
    cause = error.os_error if isinstance(error, ClientConnectorError) else error
    match cause:
        case ssl.SSLCertVerificationError():
            return CertificateUntrusted(url, cause)
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():  # of the network, not of TLS
            return kind(f"{url} closed the connection before TLS began; {hint}")
        case ssl.SSLError():
            return TlsFailed(f"{url} does not speak TLS as it should: {cause.reason or cause}; {hint}")
    # aiohttp's own text names options of aiohttp.
    reason = error.strerror if isinstance(error, ClientConnectorError) else None
    return kind(f"{url} cannot be reached: {reason or str(cause) or type(cause).__name__}")
