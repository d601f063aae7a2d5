"""One server for each set of flags, for all scenarios of a test process."""

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests.server import RunningServer, running_server

ServerWith = Callable[..., RunningServer]
"""Returns the server with these flags."""

WORKERS = ("--workers", "2")

LONG_HISTORY = ("--public", "--history_limit", "2000")
SHORT_HISTORY = ("--public", "--history_limit", "5")
EPHEMERAL = ("--public", "--history_limit", "0")

STREAM_RULES = str(Path(__file__).with_name("stream_rules.toml"))
SMALL_OUTBOX = ("--public", "--config_path", STREAM_RULES, "--ws_max_pending_size", "100kb")
"""Closes slow consumers soon, and drops messages of streams `ticker/*` for them."""

SLOW_COMMANDS = (
    *("--public", "--command_rate", "50", "--tcp_command_rate", "50"),
    *("--command_burst", "5", "--command_backlog", "1s"),
)

WITHOUT_STORE = ("--public", "--broker", "redis", "--redis_url", "redis://127.0.0.1:1")
"""Its store does not answer."""

DEFAULT_HISTORY_LIMIT = 100


@contextmanager
def shared_servers() -> Iterator[ServerWith]:
    """Stops all servers at the end. Fails if one of them ended before a later test needs it, or logged a traceback."""
    servers: dict[tuple[str, ...], RunningServer] = {}
    with ExitStack() as stack:

        def get(*flags: str) -> RunningServer:
            if flags not in servers:
                servers[flags] = stack.enter_context(running_server(*flags))
            assert servers[flags].process.poll() is None, f"the server with {flags} ended:\n{servers[flags].log()}"
            return servers[flags]

        yield get
