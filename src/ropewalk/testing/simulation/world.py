"""The world of the simulation: nodes and clients over one truth, and a network between them that fails in every way.

What clients and publishers see is checked as it happens. When the world is left in peace, all must have everything.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from random import Random

import msgspec
from msgspec import Struct

from ropewalk.adapters.apps.streams import PubSubChannel
from ropewalk.core.rules import Rulebook
from ropewalk.core.stats import Stats
from ropewalk.engine.node import Node
from ropewalk.model.limits import Limits
from ropewalk.model.messages import Registered
from ropewalk.model.rules import SlowPolicy, StreamRule, StreamRules
from ropewalk.model.sessions import Accepted, ConnectRequest, SessionTaken
from ropewalk.testing.shared_store import LosableStore
from ropewalk.testing.simulation.client import SimulatedClient
from ropewalk.testing.simulation.ledger import Anomaly, AnomalyKind, Ledger
from ropewalk.testing.simulation.unreliable import Air, Counts, Faults, UnreliableBackend

BEGAN = 1_800_000_000.0
PEACE_SECONDS = 20.0
"""Long enough for everything to be found and filled, and too short for the store to forget what was published last."""
REWRITTEN_SECONDS = 30.0
"""Within which every node has noticed that the store lost its data, also one that was stalled, and has written its sessions."""
TOLD_STEPS = 60
"""Steps before a failure that are shown with it."""

LIMITS = Limits(
    max_pending=20_000,
    resume_timeout=1e9,
    ping_interval=0,
    command_rate=1e6,
    command_burst=1_000_000,
    sessions_ttl=60.0,
    presence_ttl=5.0,
)
RULES = StreamRules(history_limit=20, history_ttl=60.0)
STREAM_RULES = (
    StreamRule("skipping/*", slow_consumer=SlowPolicy.DROP),
    StreamRule("fleeting/*", history_limit=0),
)

FAULTS = ("late", "lost", "repeated", "unanswered", "unavailable")


class Plan(Struct, frozen=True):
    """What to simulate. `without`: actions and faults that are left out, by name."""

    seed: int = 0
    steps: int = 10_000
    nodes: int = 3
    clients: int = 12
    streams: int = 6
    without: frozenset[str] = frozenset()


class Report(Struct):
    """What was done. `anomaly` is empty when the contract held; `history` are the last steps before it."""

    seed: int
    steps: int = 0
    seconds: float = 0.0  # of virtual time
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
    anomaly: str = ""
    kind: AnomalyKind | None = None
    history: Sequence[str] = ()


class ByName:
    """Implements `ports.Authenticator`: clients say who they are."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted:
        return Accepted(msgspec.json.encode({"client": request.params["client"]}).decode())


class Host(Struct, frozen=True):
    """A node, and what it reaches the truth through."""

    node: Node
    backend: UnreliableBackend


class World:
    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.chance = Random(plan.seed)
        self.faults = Faults()
        self.report = Report(plan.seed)
        self.ledger = Ledger()
        self.log: deque[str] = deque(maxlen=TOLD_STEPS)
        self._air = Air(self.faults, self.report.faults, self.chance)
        self._rules = Rulebook(RULES, STREAM_RULES)
        self._truth = LosableStore(
            self._rules, self.now, self, presence_ttl=LIMITS.presence_ttl, idle_factor=1.0, dedup_ttl=30.0
        )
        self._over: set[str] = set()  # sids of sessions that were given out as over
        self._announced: dict[str, set[str]] = {}  # stream → members, by their events
        self._started = 0  # nodes
        self._failure: Anomaly | None = None
        self._under_way: set[asyncio.Task[None]] = set()
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
        return BEGAN + asyncio.get_running_loop().time()

    async def start(self) -> None:
        asyncio.get_running_loop().set_exception_handler(self._fail)
        await self._truth.start()
        for _ in range(self.plan.nodes):
            self.hosts.append(await self.new_host())
        for number in range(self.plan.clients):
            self.clients.append(SimulatedClient(f"client {number}", self.ledger, self.now, self, LIMITS.sessions_ttl))

    async def lose_store(self) -> None:
        """What the store held is gone: history, sessions, members, idempotency keys. What clients have of it was registered."""
        self.report.faults.store_losses += 1
        await self._truth.lose()
        self.ledger.store_lost()
        self._announced.clear()
        self._over.clear()  # nobody knows of them any more: a node that still has one writes it again
        settles_at = asyncio.get_running_loop().time() + REWRITTEN_SECONDS
        for client in self.clients:
            client.store_lost(settles_at)

    async def peace(self) -> None:
        """No more faults; everybody is connected and reads. Then nothing may be missing."""
        self.tell("peace")
        faults = msgspec.structs.asdict(self.faults)
        self.faults.heal()
        for host in self.hosts:
            host.backend.link.stalled_until = 0.0
        for client in self.clients:
            client.forget_half_dead()
        for _ in range(round(PEACE_SECONDS)):
            for client in self.clients:
                if not client.connected:
                    host = self.chance.choice(self.hosts)
                    client.connect(host.node, host.backend.link)
                client.speed_up()
            await asyncio.sleep(1.0)
            self.raise_failure()
        tips = {stream: await self._truth.memory.streams.tip(stream) for stream in self.streams}
        for client in self.clients:
            client.check_end(lambda stream: tips[stream])
        for stream in self.streams:
            self._check_members(stream)
        self._check_sessions()
        for name, value in faults.items():
            setattr(self.faults, name, value)

    def _check_sessions(self) -> None:
        living = {host.backend.feed.node: host.node.sessions.live for host in self.hosts}
        for node in self._truth.sessions.nodes():
            if ghosts := set(self._truth.sessions.live_on(node)) - living.get(node, {}).keys():
                raise Anomaly(AnomalyKind.GHOST_SESSION, f"{', '.join(sorted(ghosts))} on {node}")

    def _check_members(self, stream: str) -> None:
        there = {client.name for client in self.clients if stream in client.present}
        listed = {member.id for member in self._truth.presence.roster.page(stream, "", len(self.clients) + 1).members}
        for how, seen in (("listed", listed), ("announced", self._announced.get(stream, set()))):
            if ghosts := seen - there:
                raise Anomaly(AnomalyKind.GHOST_MEMBER, f"{', '.join(sorted(ghosts))} of {stream}: {how} and not there")
            if missing := there - seen:
                raise Anomaly(AnomalyKind.MISSING_MEMBER, f"{', '.join(sorted(missing))} of {stream}: there and not {how}")

    async def finish(self) -> None:
        report = self.report
        report.seconds = asyncio.get_running_loop().time()
        report.registered = self.ledger.registered
        report.delivered = self.ledger.delivered
        report.filled = self.stats.feed_fills
        report.gaps = sum(self.stats.gaps.values())
        for host in self.hosts:
            await host.node.tasks.cancel()

    def tell(self, what: str) -> None:
        self.log.append(f"{self.report.steps:>7} {asyncio.get_running_loop().time():10.3f} s  {what}")

    def _fail(self, loop: asyncio.AbstractEventLoop, context: dict[str, object]) -> None:
        """An exception that nobody catches, in a callback or a task."""
        error = context.get("exception")
        self.failed(error if isinstance(error, Anomaly) else Anomaly(AnomalyKind.FAILED, f"{context['message']}: {error!r}"))

    def raise_failure(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- the carrier of the store ---

    def carry(self, messages: Sequence[Registered]) -> None:
        try:
            self.ledger.register(messages)
        except Anomaly as anomaly:
            self.failed(anomaly)
        for message in messages:
            if message.broadcast_type == "presence":
                self._announce(message)
        self._air.carry(messages)

    def order(self, node: str, order: SessionTaken) -> None:
        self._air.order(node, order)

    def _announce(self, message: Registered) -> None:
        self.report.presence_events += 1
        event = msgspec.json.decode(message.payload)
        members = self._announced.setdefault(message.stream, set())
        if event["type"] == "join":
            members.add(event["id"])
        else:
            members.discard(event["id"])

    # --- what clients and the store tell ---

    def restored(self, sid: str, taken_over: bool) -> None:
        self.report.restored += 1
        self.report.taken_over += taken_over
        if sid in self._over:
            self.failed(Anomaly(AnomalyKind.ENDED_TWICE, f"{sid} was over, and was restored"))

    def ended(self, sid: str) -> None:
        self.report.sessions_over += 1
        if sid in self._over:
            self.failed(Anomaly(AnomalyKind.ENDED_TWICE, f"{sid} was over already"))
        self._over.add(sid)

    def failed(self, anomaly: Anomaly) -> None:
        self._failure = self._failure or anomaly

    async def new_host(self) -> Host:
        channels = [PubSubChannel(public=True, secret="", whisper=False, presence=True)]
        self._started += 1
        backend = UnreliableBackend(self._truth, self._air, f"node {self._started}", self.ended)
        node = Node(
            backend,
            [ByName()],
            channels,
            self._rules,
            LIMITS,
            self.stats,
            self.now,
            sessions_key=b"one for all nodes" * 2,
            chance=self.chance.random,
        )
        await node.start()
        return Host(node, backend)

    def spawn(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._under_way.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._under_way.discard(task)
        if not task.cancelled() and (error := task.exception()):
            self._fail(asyncio.get_running_loop(), {"message": "a task failed", "exception": error})

    def some(self, fits: Callable[[SimulatedClient], bool]) -> SimulatedClient | None:
        found = [client for client in self.clients if fits(client)]
        return self.chance.choice(found) if found else None
