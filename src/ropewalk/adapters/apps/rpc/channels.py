"""The gRPC channels to an application: one for a target, or one for each member of a list, which take turns.

Connecting goes on in the background, and quickly: an application that is back is found within a second or two.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import grpc
from grpc import ChannelConnectivity
from grpc.aio import Channel

from ropewalk.model.errors import UserMistake

LIST = "grpc-list://"

_RESOLVED = ("dns", "ipv4", "ipv6", "unix", "unix-abstract", "vsock", "xds")
_HOST_AND_PORT = re.compile(r"(?:\[[0-9a-fA-F:.]+\]|[^\s:/@\[\]]+):([0-9]{1,5})", re.ASCII)

_OPTIONS: tuple[tuple[str, str | int], ...] = (
    ("grpc.lb_policy_name", "round_robin"),
    # More than ten seconds: common servers allow a ping every ten, and take one that comes a moment early for an attack.
    ("grpc.keepalive_time_ms", 12_000),
    ("grpc.keepalive_timeout_ms", 5_000),
    ("grpc.keepalive_permit_without_calls", 1),
    ("grpc.http2.max_pings_without_data", 0),
    # By default it waits up to two minutes before it looks again.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1_000),
    ("grpc.min_reconnect_backoff_ms", 2_000),
    ("grpc.dns_min_time_between_resolutions_ms", 5_000),
    # The application is a neighbour; a proxy that the environment names is meant for the world.
    ("grpc.enable_http_proxy", 0),
    # Connections end with their channel.
    ("grpc.use_local_subchannel_pool", 1),
)

_BY_STATE = {ChannelConnectivity.READY: 0, ChannelConnectivity.IDLE: 1, ChannelConnectivity.CONNECTING: 2}
_LAST = 3


def opener(tls: bool, tls_root_ca: str, max_recv: int, max_send: int) -> Callable[[str], Channel]:
    """How to open a channel to a target. Raises UserMistake for a file that cannot be read."""
    options = [*_OPTIONS]
    if max_recv:
        options.append(("grpc.max_receive_message_length", max_recv))
    if max_send:
        options.append(("grpc.max_send_message_length", max_send))
    if not tls:
        return lambda target: grpc.aio.insecure_channel(target, options)
    credentials = grpc.ssl_channel_credentials(root_certificates=_root_ca(tls_root_ca))
    return lambda target: grpc.aio.secure_channel(target, credentials, options)


def targets(host: str) -> list[str]:
    """`host:port` and whatever else gRPC can resolve is one target; `grpc-list://a:1,b:2` are several. Raises UserMistake."""
    names = host.removeprefix(LIST).split(",") if host.startswith(LIST) else [host]
    found = [name.strip() for name in names if name.strip()]
    if not found or not all(map(_usable, found)):  # without the value: a URL of another kind may hold a password
        raise UserMistake(
            f"--rpc_host names no application: give host:port, dns:///host:port or {LIST}host:port,host:port for gRPC, "
            "or http://host:port/path for RPC over HTTP"
        )
    return found


def _usable(target: str) -> bool:
    """`host:port`, or a scheme that gRPC resolves by itself. Whatever else it would take for the name of a host."""
    scheme, colon, rest = target.partition(":")
    if colon and scheme in _RESOLVED:
        return bool(rest.strip("/"))
    found = _HOST_AND_PORT.fullmatch(target)
    return found is not None and int(found[1]) <= 65535


class GrpcChannels:
    def __init__(self, hosts: Sequence[str], open_channel: Callable[[str], Channel]) -> None:
        """Begins to connect at once."""
        self._channels = [open_channel(host) for host in hosts]
        self._turn = 0
        for channel in self._channels:
            channel.get_state(try_to_connect=True)

    def in_turn(self) -> list[Channel]:
        """All of them, in the order to try. Those that are connected come first, so that a dead one costs nobody any time."""
        if len(self._channels) == 1:
            return self._channels
        self._turn = (self._turn + 1) % len(self._channels)
        rotated = self._channels[self._turn :] + self._channels[: self._turn]
        return sorted(rotated, key=lambda channel: _BY_STATE.get(channel.get_state(try_to_connect=True), _LAST))

    async def close(self) -> None:
        for channel in self._channels:
            await channel.close()


def _root_ca(path: str) -> bytes | None:
    """None: those of the library."""
    if not path:
        return None
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UserMistake(f"the root certificates {path} cannot be read: {error.strerror}") from None
