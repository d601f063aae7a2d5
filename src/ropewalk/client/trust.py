"""Which certificates of servers are believed: those that the system trusts, or those of one file."""

import ssl

from aiohttp import ClientSession, TCPConnector

from ropewalk.model.errors import UserMistake


def trust(ca_file: str | None) -> ssl.SSLContext | None:
    """None means the system's certificates, and is what no file says. Raises UserMistake for a file that cannot be used."""
    if not ca_file:
        return None
    try:
        return ssl.create_default_context(cafile=ca_file)
    except OSError as error:  # an SSLError is one too
        raise UserMistake(f"ca_file wants a file with certificates, and {ca_file!r} cannot be read as one: {error}") from error


def session_trusting(tls: ssl.SSLContext | None) -> ClientSession:
    """To be made where an event loop runs, and closed by the caller."""
    return ClientSession(connector=TCPConnector(ssl=tls or True))
