"""The simulated world: nodes and clients over one store, and an unreliable network between them.

Everything that clients and publishers receive is checked as it happens. After a quiet period without faults, nothing may be
missing.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from hashlib import blake2b
from random import Random

import msgspec
from msgspec import Struct

from ropewalk.adapters.apps.streams import PubSubChannel
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.context import Access, EngineContext
from ropewalk.engine.node import Node
from ropewalk.model.limits import Limits, StoreLimits
from ropewalk.model.messages import Registered
from ropewalk.model.rules import SlowPolicy, StreamRule, StreamRules
from ropewalk.model.sessions import Accepted, ConnectRequest, SessionTaken
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.client import SimulatedClient
from ropewalk.testing.simulation.ledger import Anomaly, AnomalyKind, Ledger
from ropewalk.testing.simulation.unreliable import Air, Counts, Faults, UnreliableBackend


class HistoryDigest:
    """A running hash over the events of a simulation, in their order and with their virtual times.

    Args:
        now: returns the virtual time.
    """

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._hash = blake2b(digest_size=8)

    def add(self, event: str, data: bytes = b"") -> None:
        self._hash.update(b"%r %d %s %d " % (self._now(), len(event), event.encode(), len(data)))
        self._hash.update(data)

    def hexdigest(self) -> str:
        return self._hash.hexdigest()


START_TIME = 1_800_000_000.0
QUIET_SECONDS = 20.0
"""Length of a quiet period: long enough to find and fill every gap, and too short for the last messages to expire."""
MAX_REWRITE_SECONDS = 30.0
"""Within this time every node, even a stalled one, detects that the store lost its data, and rewrites its sessions."""
MAX_LOGGED_STEPS = 60
"""Steps that a report lists before a failure."""

LIMITS = Limits(
    max_pending=20_000,
    resume_timeout=1e9,
    ping_interval=0,
    command_rate=1e6,
    command_burst=1_000_000,
    sessions_ttl=60.0,
    presence_ttl=5.0,
    slice_writes=2,
)
RULES = StreamRules(history_limit=20, history_ttl=60.0)
STREAM_RULES = (
    StreamRule("skipping/*", slow_consumer=SlowPolicy.DROP),
    StreamRule("fleeting/*", history_limit=0),
)

FAULTS = ("late", "lost", "repeated", "unanswered", "unavailable")


class Plan(Struct, frozen=True):
    """The parameters of a simulation. `without`: the names of actions and faults to leave out."""

    seed: int = 0
    steps: int = 10_000
    nodes: int = 3
    clients: int = 12
    streams: int = 6
    without: frozenset[str] = frozenset()


class Report(Struct):
    """The result of a simulation.

    `digest` is a hash of the whole history. `anomaly` is empty if the contract held; `history` are the last steps before it.
    """

    seed: int
    steps: int = 0
    seconds: float = 0.0  # virtual time
    actions: dict[str, int] = {}
    faults: Counts = msgspec.field(default_factory=Counts)
    registered: int = 0
    delivered: int = 0
    restored: int = 0
    taken_over: int = 0
    sessions_over: int = 0
    presence_events: int = 0
    filled: int = 0
    gaps: int = 0
    digest: str = ""
    anomaly: str = ""
    kind: AnomalyKind | None = None
    history: Sequence[str] = ()


class NameAuthenticator:
    """Implements `ports.Authenticator`: accepts every client under the name in its parameters."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
        return Accepted(msgspec.json.encode({"client": request.params["client"]}).decode())


class Host(Struct, frozen=True):
    """A node, and its unreliable connection to the store."""

    node: Node
    backend: UnreliableBackend


class World:
    """Nodes, clients, store, network, and the checks of the contract."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = Random(plan.seed)
        self.faults = Faults()
        self.report = Report(plan.seed)
        self.log: deque[str] = deque(maxlen=MAX_LOGGED_STEPS)
        self._digest = HistoryDigest(lambda: asyncio.get_running_loop().time())
        self.record = self._digest.add
        self._air = Air(self.faults, self.report.faults, self.chance, self.record)
        self._rules = Rulebook(RULES, STREAM_RULES)
        self.ledger = Ledger(self._rules, self.now)
        self._store = LosableStore(
            self._rules, self.now, self, StoreLimits(presence_ttl=LIMITS.presence_ttl, idle_factor=1.0, dedup_ttl=30.0)
        )
        self._ended_sids: set[str] = set()  # sessions whose end the store has reported
        self._announced_members: dict[str, set[str]] = {}  # stream → members, according to presence events
        self._started = 0  # nodes
        self._failure: Anomaly | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self.published = 0
        self.stats = Stats()
        self.hosts: list[Host] = []
        self.pause = 0.0
        self.clients: list[SimulatedClient] = []
        kinds = ("kept", "skipping", "fleeting")
        self.streams = [f"{kinds[number % 3]}/{number}" for number in range(plan.streams)]
        for fault in plan.without & set(FAULTS):
            setattr(self.faults, fault, 0.0)

    def now(self) -> float:
        return START_TIME + asyncio.get_running_loop().time()

    async def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._fail)
        for _ in range(self.plan.nodes):
            self.hosts.append(await self.new_host())
        for number in range(self.plan.clients):
            self.clients.append(SimulatedClient(f"client {number}", self.ledger, self.now, self, LIMITS.sessions_ttl))

    def interrupt_store(self, seconds: float) -> None:
        """The store is unreachable: all joins wait for it, and those that begin meanwhile."""
        self.faults.away_until = asyncio.get_running_loop().time() + seconds
        for client in self.clients:
            client.store_away(self.faults.away_until + MAX_REWRITE_SECONDS)

    async def lose_store(self, seconds: float) -> None:
        """The store is unreachable for this time, and comes back without its data: history, sessions, members, idempotency
        keys. Messages that clients have stay valid."""
        self.interrupt_store(seconds)
        self.report.faults.store_losses += 1
        await self._store.lose()
        self.ledger.store_lost()
        self._announced_members.clear()
        self._ended_sids.clear()  # the store has forgotten them: a node that still has one rewrites it
        for client in self.clients:
            client.store_lost(self.faults.away_until + MAX_REWRITE_SECONDS)

    async def check_quiet_period(self) -> None:
        """Stop the faults, connect all clients and let them read. Then check that nothing is missing. Raises Anomaly."""
        self.log_step("quiet period")
        faults = msgspec.structs.asdict(self.faults)
        self.faults.heal()
        for host in self.hosts:
            host.backend.link.stalled_until = 0.0
        for client in self.clients:
            client.close_half_open()
        for _ in range(round(QUIET_SECONDS)):
            for client in self.clients:
                if not client.connected:
                    host = self.chance.choice(self.hosts)
                    client.connect(host.node, host.backend.link)
                client.speed_up()
            await asyncio.sleep(1.0)
            self.raise_failure()
        tips = {stream: await self._store.streams.tip(stream) for stream in self.streams}
        for client in self.clients:
            client.check_end(lambda stream: tips[stream])
        for stream in self.streams:
            self._check_members(stream)
        self._check_sessions()
        for name, value in faults.items():
            setattr(self.faults, name, value)

    def _check_sessions(self) -> None:
        live = {host.backend.feed.node: host.node.sessions.live for host in self.hosts}
        for node in sorted(self._store.sessions.nodes()):
            if ghosts := set(self._store.sessions.live_on(node)) - live.get(node, {}).keys():
                raise Anomaly(AnomalyKind.GHOST_SESSION, f"{', '.join(sorted(ghosts))} on {node}")

    def _check_members(self, stream: str) -> None:
        joined = {client.name for client in self.clients if stream in client.present}
        listed = {member.id for member in self._store.presence.roster.page(stream, "", len(self.clients) + 1).members}
        for source, seen in (("listed", listed), ("announced", self._announced_members.get(stream, set()))):
            if ghosts := seen - joined:
                raise Anomaly(AnomalyKind.GHOST_MEMBER, f"{', '.join(sorted(ghosts))} of {stream}: {source}, but not joined")
            if missing := joined - seen:
                raise Anomaly(AnomalyKind.MISSING_MEMBER, f"{', '.join(sorted(missing))} of {stream}: joined, but not {source}")

    async def finish(self) -> None:
        report = self.report
        report.seconds = asyncio.get_running_loop().time()
        report.registered = self.ledger.registered
        report.delivered = self.ledger.delivered
        report.filled = self.stats.feed_fills
        report.gaps = sum(self.stats.gaps.values())
        report.digest = self._digest.hexdigest()
        for host in self.hosts:
            await host.node.tasks.cancel()

    def log_step(self, text: str) -> None:
        self.record(text)
        self.log.append(f"{self.report.steps:>7} {asyncio.get_running_loop().time():10.3f} s  {text}")

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """Report an unhandled exception of a callback or a task."""
        error = context.get("exception")
        self.failed(error if isinstance(error, Anomaly) else Anomaly(AnomalyKind.FAILED, f"{context['message']}: {error!r}"))

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- messages from the store to the nodes ---

    def carry(self, messages: Sequence[Registered]) -> None:
        for message in messages:
            self.record(f"registered {message.stream} {message.epoch}/{message.offset}", message.payload)
        try:
            self.ledger.register(messages)
        except Anomaly as anomaly:
            self.failed(anomaly)
        for message in messages:
            if message.broadcast_type == "presence":
                self._apply_presence_event(message)
        self._air.carry(messages)

    def order(self, node: str, order: SessionTaken) -> None:
        self._air.order(node, order)

    def _apply_presence_event(self, message: Registered) -> None:
        self.report.presence_events += 1
        event = msgspec.json.decode(message.payload)
        members = self._announced_members.setdefault(message.stream, set())
        if event["type"] == "join":
            members.add(event["id"])
        else:
            members.discard(event["id"])

    # --- events of clients and of the store ---

    def restored(self, sid: str, taken_over: bool) -> None:
        self.record(f"restored {sid} {taken_over}")
        self.report.restored += 1
        self.report.taken_over += taken_over
        if sid in self._ended_sids:
            self.failed(Anomaly(AnomalyKind.ENDED_TWICE, f"{sid} was restored after its end"))

    def ended(self, sid: str) -> None:
        self.record(f"ended {sid}")
        self.report.sessions_over += 1
        if sid in self._ended_sids:
            self.failed(Anomaly(AnomalyKind.ENDED_TWICE, f"{sid} had already ended"))
        self._ended_sids.add(sid)

    def failed(self, anomaly: Anomaly) -> None:
        self.record(f"failed: {anomaly}")
        self._failure = self._failure or anomaly

    async def new_host(self) -> Host:
        channels = [PubSubChannel(public=True, secret="", whisper=False, presence=True)]
        self._started += 1
        backend = UnreliableBackend(self._store, self._air, f"node {self._started}", self.ended)
        node = Node(
            EngineContext(LIMITS, self._rules, self.stats, self.now, self.chance.random),
            backend,
            Access([NameAuthenticator()], channels, sessions_key=b"one for all nodes" * 2),
        )
        await node.start()
        return Host(node, backend)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._fail(asyncio.get_running_loop(), {"message": "a task failed", "exception": error})

    def choose_client(self, matches: Callable[[SimulatedClient], bool]) -> SimulatedClient | None:
        found = [client for client in self.clients if matches(client)]
        return self.chance.choice(found) if found else None
