"""One shard of the store: where its keys are, how its scripts are run, and how far this node saw it come.

Invariant: no position is given or read on a run of the server that was not confirmed (`lua/hello.lua`). A server that came back
without its newest writes begins a new generation first, and with it new epochs.
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
"""Names in all groups. Older groups are dropped: a server that has lost more begins new epochs for all streams."""


class AppendGroup:
    """Appends that one script registers. `end`: the shard's counter after it; infinite while that is not known."""

    __slots__ = ("count", "end", "streams")

    def __init__(self, streams: Iterable[str], count: int) -> None:
        self.streams = tuple(streams)
        self.count = count
        self.end = inf


class RecentAppends:
    """The streams to which this node has appended lately, for a server that comes back without its newest writes.

    Invariant: a group of appends is noted before it is sent, so above `since` none is missing.
    """

    def __init__(self) -> None:
        self._groups: deque[AppendGroup] = deque()
        self._names = 0
        self._since = inf
        self._newest = 0

    def start(self, counter: int) -> None:
        """The shard had come this far before this process began: an earlier one under the same name may have appended."""
        self._since = counter

    def begin(self, streams: Iterable[str], count: int) -> AppendGroup:
        """`count`: how many messages it may register."""
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

    def testimony(self, counter: int) -> bytes:
        """Whether all groups above a counter are known, how many messages they have at most, and their streams."""
        groups = [group for group in self._groups if group.end > counter]
        streams = {stream for group in groups for stream in group.streams}
        return encode((int(self._since <= counter), sum(group.count for group in groups), sorted(streams)))


class Script(Struct, frozen=True):
    """A Lua script: one atomic step of the server. The first three arguments of most scripts are the run of the server that the
    caller knows, the time that tests set (0 otherwise), and the command that reaches subscribers."""

    text: str
    digest: str


PRELUDES = {
    "sessions": ("common", "owners", "records"),
    "leases": ("common", "owners", "records"),
    "presence": ("common", "owners"),
    "ring_renew": (),
    "ring_record": (),
}
"""What stands before a script; before all others it is `common`."""


@cache
def script(name: str) -> Script:
    folder = files(__package__) / "lua"
    text = "\n".join((folder / f"{part}.lua").read_text("utf-8") for part in (*PRELUDES.get(name, ("common",)), name))
    return Script(text, sha1(text.encode(), usedforsecurity=False).hexdigest())


logger = logging.getLogger("ropewalk.redis")

UNCONFIRMED = "RWHELLO"

GRACE_MS = 1000
"""How long a server that came back waits for what other nodes saw of it; three times as long if it lost something."""

HELLO_SECONDS = 5.0

SCRIPT_ATTEMPTS = 4
"""Nothing was done in any of them: the server did not know the script, or its run was not confirmed."""


class Manner:
    """How `node` calls the scripts, the same for all shards. `clock`: the time of tests in milliseconds; None: the server's.
    `sharded`: whether subscribers are reached by SPUBLISH. `restart`: every run of the server is a new generation."""

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
    """`tag`: what its keys have in common, so that they are on one server of a cluster."""

    def __init__(self, tag: str, links: RedisLinks, manner: Manner) -> None:
        self.links = links
        self.manner = manner
        self.trouble = ""  # what failed last, "" since the server answered again
        self._base = f"{manner.prefix}{{{tag}}}:".encode()
        self._run = ""
        self._generation = ""
        self._counter = 0
        self._greeting = asyncio.Lock()
        self.appends = RecentAppends()

    def key(self, name: str) -> bytes:
        return self._base + name.encode()

    def saw(self, run: str, generation: str, counter: int) -> None:
        """The shard had come this far. What an earlier run of the server said is over, and a later one was not greeted yet."""
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
                    await self.greet(link)
                else:
                    self.trouble = ""
                    return answer
        except exceptions.RedisError as error:
            await link.close()  # the server that has the shard may be another one now
            if done_nothing(error):
                raise Unavailable(f"Redis refuses: {error}") from None
            logger.error("a script failed", extra={"script": name, "reason": str(error)})
            raise Unanswered(f"Redis failed: {error}") from None
        raise Unavailable("Redis starts again and again")

    async def _call(self, link: RedisLink, called: Script, keys: list[bytes], arguments: tuple[Any, ...]) -> Any:
        manner = self.manner
        known = (self._run, manner.now(), manner.publish)
        return await link.ask("EVALSHA", called.digest, len(keys), *keys, *known, *arguments)

    async def greet(self, link: RedisLink) -> None:
        """Have the run of the server confirmed, and tell what this node saw of the one before. Raises `Unavailable`."""
        async with self._greeting:
            try:
                async with asyncio.timeout(HELLO_SECONDS):
                    proof = await _keeps_everything(link)
                    while not await self._hello(link, proof):
                        pass
            except TimeoutError:
                raise Unavailable("Redis has started anew and is not confirmed yet") from None

    async def _hello(self, link: RedisLink, proof: bool, testimony: bytes = b"") -> bool:
        """Whether the run is confirmed; otherwise some time has passed, and it may be asked again."""
        called, manner = script("hello"), self.manner
        seen = (self._generation, self._counter, self._run)
        how = (GRACE_MS, int(proof), secrets.token_urlsafe(6), int(manner.restart), manner.node, testimony)
        try:
            answer = await self._call(link, called, [self.key("x"), self.key("nn"), self.key("w")], (*seen, *how))
        except exceptions.NoScriptError:
            await link.ask("SCRIPT", "LOAD", called.text)
            return False
        run, generation, counter, wait, lost = answer
        if wait < 0:
            return await self._hello(link, proof, self.appends.testimony(int(counter)))
        if wait:
            await asyncio.sleep(wait / 1000)
            return False
        if lost:
            logger.warning(
                "Redis came back without all it had: some streams begin new epochs",
                extra={"shard": self._base.decode(), "streams": lost},
            )
        self._confirm(run.decode(), generation.decode(), int(counter))
        return True

    def _confirm(self, run: str, generation: str, counter: int) -> None:
        if self._generation and generation != self._generation:
            logger.warning(
                "Redis came back without all it had: all streams begin new epochs", extra={"shard": self._base.decode()}
            )
        elif self._run and run != self._run:
            logger.info("Redis has started anew", extra={"shard": self._base.decode()})
        if not self._run:
            self.appends.start(counter)
        self._run, self._generation, self._counter = run, generation, counter


async def _keeps_everything(link: RedisLink) -> bool:
    """Whether the server writes everything to the disk before it answers, so that a restart loses nothing."""
    try:
        persistence = await link.ask("INFO", "persistence")
        answer = await link.ask("CONFIG", "GET", "appendfsync")
    except exceptions.ResponseError:  # not everybody may ask
        return False
    return b"aof_enabled:1" in persistence and b"always" in answer
