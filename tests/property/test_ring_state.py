"""A simulation of `RingState`: nodes join, leave, crash and lose their links.

A position of an epoch is assigned once. Without a crash nothing is lost, and no shard is served twice. Once
all messages are delivered, every shard is served by its owner.
"""

from collections import deque

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.ring_state import RingState
from ropewalk.core.ring_table import build_first_table
from ropewalk.model.errors import Conflict
from ropewalk.model.ring import AddNode, Possession, RingMember, RingNews

SHARDS = 5
NAMES = "abcde"
FOUNDERS = "abc"
"""Founding nodes have the same settings; later nodes need the address of one of them."""


class Log:
    """The content of a shard: its epoch and the number of assigned positions."""

    def __init__(self, epoch: int, tip: int = 0) -> None:
        self.epoch, self.tip = epoch, tip


class SimulatedNode:
    def __init__(self, name: str, seeds: str, kept: RingNews | None) -> None:
        self.member = RingMember(name, f"{name}:1")
        table = build_first_table([RingMember(seed, f"{seed}:1") for seed in seeds], SHARDS) if kept is None else kept.table
        self.state = RingState(name, table, () if kept is None else kept.possessions)
        self.logs: dict[int, Log] = {}
        self.staged: dict[int, Log] = {}
        self.sending: dict[int, str] = {}


class World:
    def __init__(self, journal: bool) -> None:
        self.journal = journal
        self.nodes: dict[str, SimulatedNode] = {}
        self.disks: dict[str, tuple[RingNews, dict[int, Log]]] = {}
        self.links: dict[tuple[str, str], deque[tuple[str, object]]] = {}
        self.assigned: set[tuple[int, int]] = set()
        self.epochs = self.changes = 0
        self.crashed = False

    # --- events

    def start(self, name: str, seeds: str) -> None:
        if name in self.nodes:
            return
        kept = self.disks.get(name) if self.journal else None
        seeds = FOUNDERS if name in FOUNDERS else seeds + name
        node = self.nodes[name] = SimulatedNode(name, seeds, None if kept is None else kept[0])
        if kept is not None:
            node.logs = dict(kept[1])
        for other in list(self.nodes):
            self.connect(name, other)
        self.act(node)

    def connect(self, one: str, other: str) -> None:
        if one == other or one not in self.nodes or other not in self.nodes or (one, other) in self.links:
            return
        for sender, receiver in ((one, other), (other, one)):
            self.links[sender, receiver] = deque([("news", self.nodes[sender].state.news)])

    def cut(self, one: str, other: str) -> None:
        for sender, receiver in ((one, other), (other, one)):
            if self.links.pop((sender, receiver), None) is None:
                continue
            node = self.nodes[receiver]
            node.state.peer_disconnected(sender)
            node.sending = {shard: target for shard, target in node.sending.items() if target != sender}

    def crash(self, name: str) -> None:
        if name not in self.nodes:
            return
        self.crashed = True
        for other in list(self.nodes):
            self.cut(name, other)
        del self.nodes[name]

    def remove(self, at: str, name: str) -> None:
        if at not in self.nodes:
            return
        state = self.nodes[at].state
        self.changes += 1
        try:
            state.apply(state.build_removal(str(self.changes), name, name in self.nodes, lost=name not in self.nodes))
        except Conflict:
            return
        self.broadcast_news(self.nodes[at])

    def publish(self, name: str) -> None:
        node = self.nodes.get(name)
        for shard, log in node.logs.items() if node is not None else ():
            if node is not None and node.state.serves(shard) and shard not in node.sending:
                log.tip += 1
                assert (log.epoch, log.tip) not in self.assigned, "a position was assigned twice"
                self.assigned.add((log.epoch, log.tip))
                self.save(node)

    def deliver(self, sender: str, receiver: str) -> None:
        queue = self.links.get((sender, receiver))
        if not queue:
            return
        kind, body = queue.popleft()
        node = self.nodes[receiver]
        match kind, body:
            case "news", RingNews() as news:
                if node.state.merge_news(sender, news):
                    self.broadcast_news(node)
            case "content", (int() as shard, Possession() as possession, Log() as log):
                node.state.mark_arriving(shard)
                node.staged[shard] = log
                node.state.mark_arrived(shard, possession)
                queue_back = self.links.get((receiver, sender))
                if queue_back is not None:
                    queue_back.append(("complete", shard))
            case "complete", int() as shard:
                if node.sending.pop(shard, "") == sender and node.state.serves(shard):
                    node.state.mark_handed_over(shard, sender)
                    node.logs.pop(shard)
                    self.save(node)
                    self.broadcast_news(node)
        self.act(node)

    # --- actions of a node

    def broadcast_news(self, node: SimulatedNode) -> None:
        self.save(node)
        for (sender, _), queue in self.links.items():
            if sender == node.state.me:
                queue.append(("news", node.state.news))

    def save(self, node: SimulatedNode) -> None:
        logs = {shard: Log(log.epoch, log.tip) for shard, log in node.logs.items()}
        self.disks[node.state.me] = (node.state.news, logs)

    def act(self, node: SimulatedNode) -> None:
        state, before = node.state, node.state.news
        for shard in state.shards_to_drop():
            state.mark_dropped(shard)
            node.logs.pop(shard)
            node.sending.pop(shard, None)
        for shard in state.shards_to_serve():
            node.logs[shard] = node.staged.pop(shard)
            state.mark_served(shard)
        for shard in state.shards_to_begin():
            if not (state.counts_as_recovered(shard) and shard in node.logs):
                self.epochs += 1
                node.logs[shard] = Log(self.epochs)
                state.mark_begun(shard)
            else:
                state.mark_begun(shard, recovered=True)
        if state.should_join(node.member):
            self.changes += 1
            state.apply(AddNode(str(self.changes), node.member))
        for shard, target in state.shards_to_hand_over().items():
            queue = self.links.get((state.me, target))
            if queue is not None and shard not in node.sending:
                node.sending[shard] = target
                log = Log(node.logs[shard].epoch, node.logs[shard].tip)
                queue.append(("content", (shard, state.possession(shard), log)))
        if state.news != before:
            self.broadcast_news(node)

    # --- checks

    def check(self) -> None:
        for shard in range(SHARDS):
            serving = [node for node in self.nodes.values() if node.state.serves(shard)]
            epochs = [node.logs[shard].epoch for node in serving]
            assert len(set(epochs)) == len(epochs), "two nodes assign positions in one epoch"
            if not self.crashed:
                assert len(serving) <= 1, "two nodes serve one shard"

    def settle(self) -> None:
        """Start all nodes, connect all links, and deliver all messages."""
        names = {member.name for node in self.nodes.values() for member in node.state.table.members}
        for name in sorted(names | self.nodes.keys() | set(FOUNDERS)):
            self.start(name, FOUNDERS)
        for one in self.nodes:
            for other in self.nodes:
                self.connect(one, other)
        for _ in range(5000):
            busy = [link for link, queue in self.links.items() if queue]
            if not busy:
                break
            for link in busy:
                self.deliver(*link)
            self.check()
        else:
            raise AssertionError("the nodes never stop sending")
        news = [node.state.news for node in self.nodes.values()]
        assert all(each == news[0] for each in news)
        for shard, owner in enumerate(news[0].table.owners):
            assert [name for name, node in self.nodes.items() if node.state.serves(shard)] == [owner]


names = st.sampled_from(NAMES)
steps = st.one_of(
    st.tuples(st.just("start"), names, st.sampled_from(["abc", "ab", "a"])),
    st.tuples(st.just("deliver"), names, names),
    st.tuples(st.just("deliver"), names, names),
    st.tuples(st.just("deliver"), names, names),
    st.tuples(st.just("cut"), names, names),
    st.tuples(st.just("connect"), names, names),
    st.tuples(st.just("publish"), names),
    st.tuples(st.just("publish"), names),
    st.tuples(st.just("remove"), names, names),
    st.tuples(
        st.just("deliver all"),
    ),
)
crashes = st.one_of(steps, steps, steps, st.tuples(st.just("crash"), names))


def _run(world: World, events: list[tuple[str, ...]]) -> None:
    for name in FOUNDERS:
        world.start(name, FOUNDERS)
    for step, *arguments in events:
        if step == "deliver all":
            for _ in range(20):
                for link in list(world.links):
                    world.deliver(*link)
        else:
            getattr(world, step)(*arguments)
        world.check()
    world.settle()


@given(st.lists(steps, max_size=60))
def test_shard_is_served_once_and_keeps_its_epoch_without_a_crash(events: list[tuple[str, ...]]) -> None:
    world = World(journal=False)
    _run(world, events)
    assert world.epochs == SHARDS


@given(st.lists(crashes, max_size=60), st.booleans())
def test_no_position_is_assigned_twice_with_crashes(events: list[tuple[str, ...]], journal: bool) -> None:
    _run(World(journal), events)


def test_node_without_links_begins_no_shard() -> None:
    world = World(journal=False)
    world.start("b", FOUNDERS)
    world.publish("b")
    assert not world.assigned
    assert world.nodes["b"].state.shards_to_begin() == []


def test_arrived_shard_is_served_and_not_begun_again() -> None:
    table = build_first_table([RingMember("a", "a:1")], 1)
    state = RingState("b", table, [Possession(0, 0, "a")])
    state.mark_arrived(0, Possession(0, 0, "a"))
    assert state.shards_to_serve() == []
    state.merge_news("a", RingNews(table, (Possession(0, 1, "b"),)))
    assert state.shards_to_serve() == [0]
    assert state.shards_to_begin() == []


def test_later_possession_wins() -> None:
    assert Possession(0, 3, "a") < Possession(0, 4, "a") < Possession(1, 0, "a")
