"""What all connections over TCP use."""

from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.adapters.endpoints.broky_clients import BrokyClients
from ropewalk.adapters.endpoints.broky_pushes import Pushes
from ropewalk.adapters.endpoints.head_timeouts import HeadTimeouts
from ropewalk.adapters.endpoints.turns import LoopTurns
from ropewalk.adapters.endpoints.websocket import Open
from ropewalk.core.stats import Stats
from ropewalk.protocol.broky import frames
from ropewalk.protocol.broky.splitter import MAX_FRAME

MAX_UNACKED = 1024 * 1024
"""Bytes of frames that wait behind a push that is under way before no more is read."""

AROUND_PAYLOADS = 64 * 1024
"""Bytes of a push frame besides its payload: keys, sizes, times and uids."""


@dataclass(frozen=True)
class BrokyShared:
    """`timeouts`: of Hellos; `write_timeouts`: of clients that do not take their answers; `message_timeouts`: of frames that
    are begun. `signed`:
    what tells the name in a signed one where subscriptions need them; None where streams are public."""

    open_session: Open
    clients: BrokyClients
    pushes: Pushes
    stats: Stats
    max_command: int
    shards: int
    signed: Callable[[str], str | None] | None
    timeouts: HeadTimeouts
    write_timeouts: HeadTimeouts
    turns: LoopTurns
    message_timeouts: HeadTimeouts

    @property
    def max_frame(self) -> int:
        return min(MAX_FRAME, self.pushes.limits.max_publish_size + AROUND_PAYLOADS)

    def welcome(self, max_frame: int) -> frames.Welcome:
        return frames.Welcome(max_frame=max_frame, max_unacked=MAX_UNACKED, shards=self.shards)
