"""Where a server says that it listens, as URLs: those of its port first, then that of its second one."""

from collections.abc import Sequence

from ropewalk.adapters.endpoints.sockets import Listening
from ropewalk.app.settings.sections import ServerSettings


def addresses_of(server: ServerSettings, sockets: Sequence[Listening]) -> list[str]:
    """`sockets` are those of --port. That of --tcp_port needs none, for its number is always written."""
    http, tcp = ("https", "tls") if server.ssl_cert else ("http", "tcp")
    listening = [each.address(http) for each in sockets]
    if server.tcp_port:
        host = f"[{server.host}]" if ":" in server.host else server.host
        listening.append(f"{tcp}://{host}:{server.tcp_port}")
    return listening
