"""The URLs on which a server listens: of --port first, then of --tcp_port."""

from collections.abc import Sequence

from ropewalk.adapters.endpoints.sockets import Listening
from ropewalk.app.settings.sections import ServerSettings


def listening_urls(server: ServerSettings, sockets: Sequence[Listening]) -> list[str]:
    """`sockets` are of --port, whose number may be 0. The number of --tcp_port is always given."""
    http, tcp = ("https", "tls") if server.ssl_cert else ("http", "tcp")
    listening = [each.address(http) for each in sockets]
    if server.tcp_port:
        host = f"[{server.host}]" if ":" in server.host else server.host
        listening.append(f"{tcp}://{host}:{server.tcp_port}")
    return listening
