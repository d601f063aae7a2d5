"""The simulation: each step performs one action, and a quiet period follows every few thousand steps.

Invariant: everything follows from the seed. Time is virtual. It uses no wall clock, no threads and no system randomness.
A failed simulation can be shrunk: fewer streams, clients, nodes, actions and faults, with the same kind of failure.
"""

import asyncio
import selectors
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from random import Random
from typing import Any, TypeVar
from unittest.mock import patch

from msgspec.structs import replace

from ropewalk.engine.node import Node
from ropewalk.model.errors import RopewalkError, Unavailable
from ropewalk.model.messages import Publication, RemoteDisconnect
from ropewalk.testing.simulation.client import SimulatedClient
from ropewalk.testing.simulation.ledger import Anomaly
from ropewalk.testing.simulation.world import FAULTS, Host, Plan, Report, World

Result = TypeVar("Result")


class _NoWaiting(selectors.SelectSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        if timeout is None:
            raise RuntimeError("no callback and no timer left: the simulation is stuck")
        self.now += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """For coroutines without sockets, threads and processes."""

    def __init__(self) -> None:
        self._virtual = _NoWaiting()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now


def run(work: Coroutine[Any, Any, Result]) -> Result:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        return runner.run(work)


QUIET_EVERY_STEPS = 2_000

WorldAction = Callable[[World], None]


def simulate(plan: Plan, progress: Callable[[int], None] = lambda steps: None) -> Report:
    chance = Random(plan.seed)

    # Random names of the engine follow from the seed as well: some are sorted, which decides the order of events.
    with patch("secrets.token_bytes", chance.randbytes):
        return run(_simulate(World(plan), progress))


async def _simulate(world: World, progress: Callable[[int], None]) -> Report:
    plan, report, counted = world.plan, world.report, Counter[str]()
    await world.start()
    try:
        for step in range(1, plan.steps + 1):
            report.steps = step
            await _step(world, counted)
            if step % QUIET_EVERY_STEPS == 0 or step == plan.steps:
                await world.check_quiet_period()
            progress(step)
    except Anomaly as anomaly:
        report.anomaly, report.kind = str(anomaly), anomaly.kind
        report.history = list(world.log)
    report.actions = dict(sorted(counted.items()))
    await world.finish()
    return report


async def _step(world: World, counted: Counter[str]) -> None:
    names = [name for name in ACTIONS if name not in world.plan.without]
    name = world.chance.choices(names, [ACTIONS[name][0] for name in names])[0]
    ACTIONS[name][1](world)
    counted[name] += 1
    pause, world.pause = world.pause, 0.0
    await asyncio.sleep(pause + world.chance.random() * 0.05)
    world.raise_failure()


# --- actions ---------------------------------------------------------------------------------------------------------


def publish(world: World) -> None:
    stream = world.chance.choice(world.streams)
    batch = []
    for _ in range(world.chance.choice((1, 1, 1, 3))):
        world.published += 1
        batch.append(Publication(stream, b'"%d%s"' % (world.published, b" " * world.chance.choice((0, 0, 4000)))))
    number = world.chance.randrange(len(world.hosts))
    world.log_step(f"node {number} publishes {len(batch)} to {stream}")
    world.spawn(_publish(world, world.hosts[number].node, batch))


async def _publish(world: World, node: Node, batch: Sequence[Publication]) -> None:
    try:
        receipts = await node.broker.publish(batch)
    except RopewalkError:  # registered or not; the ledger checks that it is not registered twice
        return
    for publication, receipt in zip(batch, receipts, strict=True):
        world.ledger.check_receipt(publication.payload, receipt.epoch, receipt.offset)


def connect(world: World) -> None:
    client = world.choose_client(lambda client: not client.connected)
    if client is not None:
        number = world.chance.randrange(len(world.hosts))
        world.log_step(f"{client.name} connects to node {number}")
        client.connect(world.hosts[number].node, world.hosts[number].backend.link)


def cut(world: World) -> None:
    client = world.choose_client(lambda client: client.connected)
    if client is not None:
        world.log_step(f"{client.name} loses its connection")
        client.cut()


def vanish(world: World) -> None:
    client = world.choose_client(lambda client: client.connected)
    if client is not None:
        world.log_step(f"{client.name} loses its connection, and its node does not notice")
        client.vanish()


def join(world: World) -> None:
    client = world.choose_client(lambda client: len(client.present) < len(client.wanted))
    if client is not None:
        stream = world.chance.choice(sorted(client.wanted.keys() - client.present))
        world.log_step(f"{client.name} joins {stream}")
        client.join(stream)


def leave(world: World) -> None:
    client = world.choose_client(lambda client: bool(client.present))
    if client is not None:
        stream = world.chance.choice(sorted(client.present))
        world.log_step(f"{client.name} leaves {stream}")
        client.leave(stream)


def subscribe(world: World) -> None:
    client = world.choose_client(lambda client: any(map(client.may_subscribe, world.streams)))
    if client is not None:
        stream = world.chance.choice([stream for stream in world.streams if client.may_subscribe(stream)])
        world.log_step(f"{client.name} subscribes to {stream}")
        client.subscribe(stream)


def unsubscribe(world: World) -> None:
    client = world.choose_client(lambda client: bool(client.wanted))
    if client is not None:
        stream = world.chance.choice(sorted(client.wanted))
        world.log_step(f"{client.name} unsubscribes from {stream}")
        client.unsubscribe(stream)


def slow_down(world: World) -> None:
    client = world.choose_client(lambda client: client.connected and not client.slow)
    if client is not None:
        world.log_step(f"{client.name} stops reading")
        client.slow_down()


def speed_up(world: World) -> None:
    client = world.choose_client(lambda client: client.slow)
    if client is not None:
        world.log_step(f"{client.name} reads again")
        client.speed_up()


def kick(world: World) -> None:
    client = world.choose_client(lambda client: True)
    if client is not None:
        world.log_step(f"{client.name} is disconnected remotely")
        world.spawn(_kick(world, world.chance.choice(world.hosts).node, client, client.request_kick()))


async def _kick(world: World, node: Node, client: SimulatedClient, lineage: int) -> None:
    """Retry until it succeeds, as an application does."""
    while True:
        losses = world.report.faults.store_losses
        try:
            await node.broker.disconnect(RemoteDisconnect(client.ids))
        except Unavailable:
            await asyncio.sleep(0.5)
        else:
            if losses == world.report.faults.store_losses:
                return client.kicked(lineage)


def stall(world: World) -> None:
    number = world.chance.randrange(len(world.hosts))
    seconds = world.chance.choice((3.0, 8.0, 15.0))
    world.log_step(f"node {number} cannot renew its lease for {seconds} s")
    world.hosts[number].backend.link.stalled_until = asyncio.get_running_loop().time() + seconds


def node_dies(world: World) -> None:
    if len(world.hosts) > 1:  # a replacement may still be starting
        number = world.chance.randrange(len(world.hosts))
        world.log_step(f"node {number} dies, and a new one starts")
        dead = world.hosts.pop(number)
        dead.backend.die()
        for client in world.clients:
            client.node_died(dead.node)
        world.spawn(_replace(world, dead))


async def _replace(world: World, dead: Host) -> None:
    await dead.node.tasks.cancel()
    world.hosts.append(await world.new_host())


def store_away(world: World) -> None:
    """Like a restart of Redis with an append-only file, or a leader election of NATS."""
    seconds = world.chance.choice((0.5, 3.0, 6.0, 20.0))
    world.log_step(f"the store is unreachable for {seconds} s")
    world.interrupt_store(seconds)


def store_lost(world: World) -> None:
    """Like a restart of Redis without persistence, or of NATS without its directory. Clients join while it restarts, and so
    while its streams begin new epochs."""
    seconds = world.chance.choice((0.0, 0.5, 3.0))
    world.log_step(f"the store is unreachable for {seconds} s, and has lost its data")
    world.spawn(world.lose_store(seconds))


def time_passes(world: World) -> None:
    world.log_step("time passes")
    world.pause = world.chance.choice((1.0, 10.0, 70.0))


ACTIONS: dict[str, tuple[float, WorldAction]] = {
    "publish": (40.0, publish),
    "connect": (12.0, connect),
    "subscribe": (10.0, subscribe),
    "unsubscribe": (4.0, unsubscribe),
    "join": (5.0, join),
    "leave": (3.0, leave),
    "cut": (4.0, cut),
    "vanish": (2.0, vanish),
    "slow_down": (3.0, slow_down),
    "speed_up": (4.0, speed_up),
    "kick": (0.5, kick),
    "node_dies": (0.2, node_dies),
    "stall": (0.1, stall),
    "store_away": (0.05, store_away),
    "store_lost": (0.02, store_lost),
    "time_passes": (0.2, time_passes),
}
"""The actions by name, with their relative frequencies."""

NEEDED = ("publish", "connect", "subscribe")
"""Actions that cannot be left out."""


SEEDS = 8
"""Seeds to try for each smaller plan: its history is different in any case."""


def shortest(plan: Plan, report: Report, progress: Callable[[int], None] = lambda steps: None) -> tuple[Plan, Report]:
    """The failed `plan` and its report, or a smaller plan that fails in the same way."""
    plan = replace(plan, steps=report.steps)
    for smaller in _smaller(plan):
        found = _fails_alike(smaller(plan), report, progress)
        if found is not None:
            plan, report = found
    return plan, report


def _smaller(plan: Plan) -> Iterator[Callable[[Plan], Plan]]:
    for name in (*FAULTS, *ACTIONS):
        if name not in NEEDED:
            yield lambda plan, name=name: replace(plan, without=plan.without | {name})  # type: ignore[misc]
    yield lambda plan: replace(plan, streams=1)
    for _ in range(3):
        yield lambda plan: replace(plan, clients=max(1, plan.clients // 2))
        yield lambda plan: replace(plan, nodes=max(1, plan.nodes - 1))


def _fails_alike(plan: Plan, report: Report, progress: Callable[[int], None]) -> tuple[Plan, Report] | None:
    best: tuple[Plan, Report] | None = None
    for seed in range(plan.seed, plan.seed + SEEDS):
        tried = replace(plan, seed=seed, steps=plan.steps if best is None else best[1].steps)
        found = simulate(tried, progress)
        if found.kind is report.kind and (best is None or found.steps < best[1].steps):
            best = (replace(tried, steps=found.steps), found)
    return best
