"""Records of what the parts of one node's engine share, so that each part takes one argument for it."""

import random
from collections.abc import Callable, Sequence

from msgspec import Struct, field

from ropewalk.core.backoff import Chance
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.tasks import Tasks
from ropewalk.model.limits import Limits
from ropewalk.model.sessions import ConnectRequest
from ropewalk.ports import Application, Authenticator, Channels, Clock


class EngineContext(Struct, frozen=True):
    """Limits, rules, counters, clock and tasks of one node.

    Args:
        chance: random numbers between 0 and 1, for the jitter of retries.
        tasks: background tasks; they are canceled when the node stops.
    """

    limits: Limits
    rules: Rulebook
    stats: Stats
    clock: Clock
    chance: Chance = random.random
    tasks: Tasks = field(default_factory=Tasks)


def _forward_nothing(request: ConnectRequest) -> dict[str, str]:
    return {}


class Access(Struct, frozen=True):
    """Who may connect to a node and subscribe there.

    Args:
        authenticators: tried in order, before the application.
        channels: the server's own channels.
        application: decides about clients and channels that the server does not know; None if there is none.
        forward: returns the request headers that the application may see.
        sessions_key: for fingerprints of credentials. With a stable key a session that an application accepted can be
            resumed after a restart without asking the application. Empty for a random one.
    """

    authenticators: Sequence[Authenticator] = ()
    channels: Sequence[Channels] = ()
    application: Application | None = None
    forward: Callable[[ConnectRequest], dict[str, str]] = _forward_nothing
    sessions_key: bytes = b""
