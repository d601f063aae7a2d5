"""Makes the report of a node. Reads counters and what the sampler keeps, so that it is cheap with many sessions too."""

from collections.abc import Callable, Mapping, Sequence

from ropewalk.core.node_reports import latency_of
from ropewalk.engine.node import Node
from ropewalk.model.journal import ShardSpan
from ropewalk.model.report import Gauges, NodeReport


class NodeInspector:
    """Implements `ports.Inspector`. What the node does not know itself is passed in: its archive, its journal's shards, its
    transactions, its broadcasters, what is wrong beside the node, what it works without, and what is counted beside it."""

    def __init__(
        self,
        node: Node,
        shards: Callable[[], Sequence[ShardSpan]] = tuple,
        archive: Callable[[], Gauges] = dict,
        transactions: Callable[[], Gauges] = dict,
        broadcasters: Callable[[], Gauges] = dict,
        problems: Callable[[], Sequence[str]] = tuple,
        impairments: Callable[[], Sequence[str]] = tuple,
        counts: Callable[[], Mapping[str, int]] = dict,
    ) -> None:
        self._node = node
        self._shards = shards
        self._archive = archive
        self._transactions = transactions
        self._broadcasters = broadcasters
        self._problems = problems
        self._impairments = impairments
        self._counts = counts

    def report(self) -> NodeReport:
        node, sampler = self._node, self._node.sampler
        stats, application = node.stats, node.application
        return NodeReport(
            problems=(*node.health(), *self._problems()),
            impairments=tuple(self._impairments()),
            connections=stats.connections_accepted - stats.connections_closed,
            sessions=len(node.sessions.live),
            streams_listened=node.hub.streams(),
            totals=sampler.totals(),
            counts={**stats.counts(), **self._counts()},
            rates=sampler.rates,
            history_waiting_bytes=node.waiting_history.bytes,
            gaps=dict(stats.gaps),
            refusals=dict(stats.refusals),
            latency=latency_of(stats.publish_to_deliver),
            shards=tuple(self._shards()),
            backend=node.backend.gauges(),
            archive=self._archive(),
            journal=node.session_log.gauges(),
            application=application.gauges() if application is not None else {},
            transactions=self._transactions(),
            broadcasters=self._broadcasters(),
        )
