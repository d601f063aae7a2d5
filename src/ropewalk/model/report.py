"""The report of a node: one record that metrics, health and pages read."""

from collections.abc import Mapping

from msgspec import Struct

from ropewalk.model.journal import ShardSpan

Gauges = Mapping[str, float]
"""Sizes of one part of the node, by their names on the metrics page."""

SHUTTING_DOWN = "shutting down"
"""The problem of a process that ends. It is not a problem of the node: its other processes continue."""


class Latency(Struct, frozen=True):
    """Seconds that something took, since start.

    `buckets` are (upper bound as text, observations at or below it) and end with "+Inf". A percentile is the upper bound of its
    bucket, so it errs on the high side; above the last bound it is that bound.
    """

    buckets: tuple[tuple[str, int], ...] = (("+Inf", 0),)
    total: float = 0.0
    p50: float = 0.0
    p95: float = 0.0
    p99: float = 0.0


class SessionTotals(Struct, frozen=True):
    """Sums over all live sessions. `outbox_bytes` counts outboxes and the buffers of connections."""

    subscriptions: int = 0
    outbox_bytes: int = 0


class NodeReport(Struct, frozen=True):
    """The state of a node. A node of several processes has a report for each, and `core.node_reports` merges them.

    Args:
        problems: sentences that name failed parts; empty for a healthy node.
        impairments: problems that do not stop the node from serving.
        streams_listened: number of streams with a subscriber here.
        history_waiting_bytes: history that clients have requested and not taken.
        totals: some seconds old on a node with many sessions.
        counts: since the start, as are `gaps` and `refusals`.
        latency: from a publication to its delivery.
        turns: how long the event loop was held, by samples.
        rates: increments of counts per second, over the last few seconds.
        workers: number of workers in this report.
        clients: open connections that `--max_conn` limits.
        http_connections: open connections that `--max_http_conn` limits.
        processes: figures of the operating system for each process, by its name.
        crowds: users and addresses with many connections, as `core.quotas` counts them.
    """

    problems: tuple[str, ...] = ()
    impairments: tuple[str, ...] = ()
    connections: int = 0
    sessions: int = 0
    streams_listened: int = 0
    totals: SessionTotals = SessionTotals()
    counts: Mapping[str, int] = {}
    rates: Mapping[str, float] = {}
    history_waiting_bytes: int = 0
    gaps: Mapping[str, int] = {}
    refusals: Mapping[str, int] = {}
    latency: Latency = Latency()
    turns: Latency = Latency()
    shards: tuple[ShardSpan, ...] = ()
    backend: Gauges = {}
    archive: Gauges = {}
    journal: Gauges = {}
    application: Gauges = {}
    transactions: Gauges = {}
    broadcasters: Gauges = {}
    workers: int = 1
    clients: int = 0
    http_connections: int = 0
    processes: Mapping[str, Gauges] = {}
    crowds: Mapping[str, int] = {}
