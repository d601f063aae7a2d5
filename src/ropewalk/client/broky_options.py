"""What a session over TCP is told to do by whoever makes it."""

from msgspec import Struct

from ropewalk.core.backoff import Backoff, Chance


class BrokyOptions(Struct, frozen=True):
    """`inbox_size`: events that wait for a slow reader before the socket is no longer read. `answer_timeout`: None leaves it to
    the pings to end a wait. `attempts`: how often a push is tried. `on_demand`: there is a connection only while something was
    asked for."""

    inbox_size: int
    connect_timeout: float
    answer_timeout: float | None
    ping_interval: float | None
    attempts: int
    backoff: Backoff
    chance: Chance
    on_demand: bool = False
