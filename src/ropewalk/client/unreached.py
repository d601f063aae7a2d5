"""What is said where no connection to a server can be made over HTTP or WebSocket."""

import ssl

from aiohttp import ClientConnectorCertificateError, ClientConnectorError

from ropewalk.client.errors import CableError, CertificateUntrusted, TlsFailed, Unreachable

NO_TLS = "if no TLS is spoken there, write http:// or ws:// in the place of https:// or wss://"


def unreached(url: str, error: Exception, kind: type[CableError] = Unreachable) -> CableError:
    """The error to raise for what a library raised; `kind` is for what another attempt may mend."""
    if isinstance(error, ClientConnectorCertificateError):
        return CertificateUntrusted(url, error.certificate_error)
    cause = error.os_error if isinstance(error, ClientConnectorError) else error
    match cause:
        case ssl.SSLCertVerificationError():
            return CertificateUntrusted(url, cause)
        case ssl.SSLEOFError() | ssl.SSLZeroReturnError() | ssl.SSLSyscallError():  # of the network, not of TLS
            return kind(f"{url} closed the connection before TLS began; {NO_TLS}")
        case ssl.SSLError():
            return TlsFailed(f"{url} does not speak TLS as it should: {cause.reason or cause}; {NO_TLS}")
    # The text of aiohttp itself tells of options of its own.
    reason = error.strerror if isinstance(error, ClientConnectorError) else None
    return kind(f"{url} cannot be reached: {reason or str(cause) or type(cause).__name__}")
