"""The server's certificate, as the settings name it."""

import ssl

from ropewalk.app.settings import Settings
from ropewalk.model.errors import UserMistake


def tls_context(settings: Settings) -> ssl.SSLContext | None:
    """None without a certificate. Raises UserMistake for one that cannot be used."""
    if not settings.server.ssl_cert:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    try:
        context.load_cert_chain(settings.server.ssl_cert, settings.server.ssl_key)
    except (OSError, ssl.SSLError) as error:
        raise UserMistake(f"the TLS certificate or key cannot be read: {error}") from None
    return context
