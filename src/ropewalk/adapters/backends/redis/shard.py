"""One shard of the store: its keys, its scripts, and the newest counter that this node has seen.

Invariant: positions are assigned and read only in a confirmed run of the server (`lua/hello.lua`). A server that restarts
without its newest writes first begins a new generation or new epochs.
"""

import asyncio
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable
from functools import cache
from hashlib import sha1
from importlib.resources import files
from math import inf
from typing import Any

from msgspec import Struct
from msgspec.msgpack import encode
from redis import exceptions

from ropewalk.adapters.backends.redis.links import RedisLink, RedisLinks, done_nothing
from ropewalk.model.errors import Unanswered, Unavailable

MAX_STREAMS = 10_000
"""Stream names in all groups. Older groups are dropped; if the server loses more, all streams begin new epochs."""


class AppendGroup:
    """Appends that one script registers. `end`: the shard's counter after it; infinite until it is answered."""

    __slots__ = ("count", "end", "streams")

    def __init__(self, streams: Iterable[str], count: int) -> None:
        self.streams = tuple(streams)
        self.count = count
        self.end = inf


class RecentAppends:
    """The streams to which this node has appended recently, in case the server restarts without its newest writes.

    Invariant: a group is added before it is sent, so no group above `since` is missing.
    """

    def __init__(self) -> None:
        self._groups: deque[AppendGroup] = deque()
        self._names = 0
        self._since = inf
        self._newest = 0

    def start(self, counter: int) -> None:
        """The counter at the start of this process. A former process with the same name may have appended below it."""
        self._since = counter

    def begin(self, streams: Iterable[str], count: int) -> AppendGroup:
        """`count`: maximum number of messages it may register."""
        group = AppendGroup(streams, count)
        self._groups.append(group)
        self._names += len(group.streams)
        while self._names > MAX_STREAMS:
            dropped = self._groups.popleft()
            self._names -= len(dropped.streams)
            self._since = max(self._since, self._newest if dropped.end == inf else dropped.end)
        return group

    def answered(self, group: AppendGroup, counter: int) -> None:
        group.end = self._newest = counter

    def report(self, counter: int) -> bytes:
        """Encodes whether all groups above a counter are known, the maximum number of their messages, and their streams."""
        groups = [group for group in self._groups if group.end > counter]
        streams = {stream for group in groups for stream in group.streams}
        return encode((int(self._since <= counter), sum(group.count for group in groups), sorted(streams)))


class Script(Struct, frozen=True):
    """A Lua script, executed atomically. The first three arguments of most scripts are the server run known to the caller, the
    time set by tests or 0, and the publish command."""

    text: str
    digest: str


PRELUDES = {
    "sessions": ("common", "owners", "records"),
    "leases": ("common", "owners", "records"),
    "presence": ("common", "owners"),
    "ring_renew": (),
    "ring_record": (),
}
"""The files prepended to a script; by default `common`."""


@cache
def script(name: str) -> Script:
    folder = files(__package__) / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (*PRELUDES.get(name, ("common",)), name))
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


logger = logging.getLogger("ropewalk.redis")

UNCONFIRMED = "RWHELLO"

GRACE_MS = 1000
"""How long a restarted server waits for reports of other nodes; three times as long if it has lost messages."""

HELLO_SECONDS = 5.0

SCRIPT_ATTEMPTS = 4
"""Retries without effect: the server did not have the script, or its run was not confirmed."""


class ScriptContext:
    """Arguments of the scripts that are the same for all shards. `clock`: for tests, in milliseconds; None: the server's clock.
    `sharded`: whether to use SPUBLISH. `restart`: every run of the server is a new generation."""

    def __init__(self, prefix: str, node: str, clock: Callable[[], int] | None = None, restart: bool = False) -> None:
        self.prefix = prefix
        self.node = node
        self.clock = clock
        self.restart = restart
        self.sharded = False

    def now(self) -> int:
        return 0 if self.clock is None else self.clock()

    @property
    def publish(self) -> str:
        return "SPUBLISH" if self.sharded else "PUBLISH"


class Shard:
    """`tag`: the hash tag of its keys, so that they are on one server of a cluster."""

    def __init__(self, tag: str, links: RedisLinks, context: ScriptContext) -> None:
        self.links = links
        self.context = context
        self.trouble = ""  # the last error, "" after a success
        self._base = f"{context.prefix}{{{tag}}}:".encode()
        self._run = ""
        self._generation = ""
        self._counter = 0
        self._confirming = asyncio.Lock()
        self.appends = RecentAppends()

    def key(self, name: str) -> bytes:
        return self._base + name.encode()

    def saw(self, run: str, generation: str, counter: int) -> None:
        """Update the counter. Counters of other runs of the server are ignored."""
        if generation == self._generation and self._run.startswith(run):
            self._counter = max(self._counter, counter)

    async def ask(self, name: str, keys: list[bytes], *arguments: Any) -> Any:
        """Run a script on any link. Raises `Unavailable` and `Unanswered`."""
        try:
            return await self.links.ask(lambda link: self.run(link, name, keys, *arguments))
        except Unavailable as error:
            self.trouble = str(error)
            raise

    async def run(self, link: RedisLink, name: str, keys: list[bytes], *arguments: Any) -> Any:
        """Run a script. Raises `Unavailable` and `Unanswered`."""
        called = script(name)
        try:
            for _ in range(SCRIPT_ATTEMPTS):
                try:
                    answer = await self._call(link, called, keys, arguments)
                except exceptions.NoScriptError:
                    await link.ask("SCRIPT", "LOAD", called.text)
                except exceptions.ResponseError as error:
                    if UNCONFIRMED not in str(error):
                        raise
                    await self.confirm_run(link)
                else:
                    self.trouble = ""
                    return answer
        except exceptions.RedisError as error:
            await link.close()  # the shard may have moved to another server
            if done_nothing(error):
                raise Unavailable(f"Redis refuses: {error}") from None
            logger.error("a script failed", extra={"script": name, "reason": str(error)})
            raise Unanswered(f"Redis failed: {error}") from None
        raise Unavailable("Redis restarts repeatedly")

    async def _call(self, link: RedisLink, called: Script, keys: list[bytes], arguments: tuple[Any, ...]) -> Any:
        context = self.context
        known = (self._run, context.now(), context.publish)
        return await link.ask("EVALSHA", called.digest, len(keys), *keys, *known, *arguments)

    async def confirm_run(self, link: RedisLink) -> None:
        """Confirm the run of the server, and report what this node saw of the former one. Raises `Unavailable`."""
        async with self._confirming:
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    proof = await _keeps_everything(link)
                    while not await self._hello(link, proof):
                        pass
            except TimeoutError:
                raise Unavailable("Redis has restarted and is not confirmed yet") from None

    async def _hello(self, link: RedisLink, proof: bool, report: bytes = b"") -> bool:
        """Returns whether the run is confirmed. If not, it has waited and may be called again."""
        called, context = script("hello"), self.context
        seen = (self._generation, self._counter, self._run)
        how = (GRACE_MS, int(proof), secrets.token_urlsafe(6), int(context.restart), context.node, report)
        try:
            answer = await self._call(link, called, [self.key("x"), self.key("nn"), self.key("w")], (*seen, *how))
        except exceptions.NoScriptError:
            await link.ask("SCRIPT", "LOAD", called.text)
            return False
        run, generation, counter, wait, lost = answer
        if wait < 0:
            return await self._hello(link, proof, self.appends.report(int(counter)))
        if wait:
            await asyncio.sleep(wait / 1000)
            return False
        if lost:
            logger.warning(
                "Redis has lost messages: some streams begin new epochs",
                extra={"shard": self._base.decode(), "streams": lost},
            )
        self._set_run(run.decode(), generation.decode(), int(counter))
        return True

    def _set_run(self, run: str, generation: str, counter: int) -> None:
        if self._generation and generation != self._generation:
            logger.warning("Redis may have lost messages: all streams begin new epochs", extra={"shard": self._base.decode()})
        elif self._run and run != self._run:
            logger.info("Redis has restarted", extra={"shard": self._base.decode()})
        if not self._run:
            self.appends.start(counter)
        self._run, self._generation, self._counter = run, generation, counter


async def _keeps_everything(link: RedisLink) -> bool:
    """Whether the server syncs every write to disk before it answers, so that a restart loses nothing."""
    try:
        persistence = await link.ask("INFO", "persistence")
        answer = await link.ask("CONFIG", "GET", "appendfsync")
    except exceptions.ResponseError:  # the user may lack permission
        return False
    return b"aof_enabled:1" in persistence and b"always" in answer
