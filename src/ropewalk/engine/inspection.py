"""Makes the report of a node. Reads counters and cached samples only: its cost does not grow with the number of sessions."""

from collections.abc import Callable, Mapping, Sequence

from msgspec import Struct

from ropewalk.core.node_reports import build_latency
from ropewalk.engine.node import Node
from ropewalk.model.journal import ShardSpan
from ropewalk.model.report import Gauges, NodeReport


class ReportSources(Struct, frozen=True):
    """What a report contains beside the node.

    Args:
        problems: of parts beside the node, for the health page.
        impairments: parts that the node works without.
        counts: counters beside those of the node.
    """

    shards: Callable[[], Sequence[ShardSpan]] = tuple
    archive: Callable[[], Gauges] = dict
    transactions: Callable[[], Gauges] = dict
    broadcasters: Callable[[], Gauges] = dict
    problems: Callable[[], Sequence[str]] = tuple
    impairments: Callable[[], Sequence[str]] = tuple
    counts: Callable[[], Mapping[str, int]] = dict


NO_SOURCES = ReportSources()


class NodeInspector:
    """Implements `ports.Inspector`."""

    def __init__(self, node: Node, sources: ReportSources = NO_SOURCES) -> None:
        self._node = node
        self._sources = sources

    def report(self) -> NodeReport:
        node, sampler, sources = self._node, self._node.sampler, self._sources
        stats, application = node.stats, node.application
        return NodeReport(
            problems=(*node.health(), *sources.problems()),
            impairments=tuple(sources.impairments()),
            connections=stats.connections_accepted - stats.connections_closed,
            sessions=len(node.sessions.live),
            streams_listened=node.hub.streams(),
            totals=sampler.totals(),
            counts={**stats.counts(), **sources.counts()},
            rates=sampler.rates,
            history_waiting_bytes=node.waiting_history.bytes,
            gaps=dict(stats.gaps),
            refusals=dict(stats.refusals),
            latency=build_latency(stats.publish_to_deliver),
            turns=build_latency(stats.loop_turns),
            shards=tuple(sources.shards()),
            backend=node.backend.gauges(),
            archive=sources.archive(),
            journal=node.session_log.gauges(),
            application=application.gauges() if application is not None else {},
            transactions=sources.transactions(),
            broadcasters=sources.broadcasters(),
        )
