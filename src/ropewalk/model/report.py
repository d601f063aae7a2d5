"""The report of a node: one record that metrics, health and pages read."""

from collections.abc import Mapping

from msgspec import Struct

from ropewalk.model.journal import ShardSpan

Gauges = Mapping[str, float]
"""Sizes of one part of the node, by the names that they have on the metrics page."""

SHUTTING_DOWN = "shutting down"
"""The problem of a process that ends. Other processes of its node do not repeat it: the node goes on with them."""


class Latency(Struct, frozen=True):
    """Seconds from a publication to its delivery, since start.

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
    """`problems` are sentences about what is down; empty when all is well. `impairments` are about what this node works on
    without. `counts`, `gaps` and `refusals` count since start.
    `rates` are increments of counts per second, over the last few seconds. `streams_listened` have a subscriber here.
    `history_waiting_bytes` are history that clients have asked for and not taken.
    `totals` are some seconds old on a node with many sessions.

    A node of several processes has a report for each, and `core.node_reports` merges them. What only that needs: `workers`
    report here; `clients` and `http_connections` are open as `--max_conn` and `--max_http_conn` count them; `processes` are the
    figures that the system has of each process, by its name."""

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
