"""Makes the report of a node, of one process or of several. Reads counters and cached samples only: its cost does not grow with
the number of sessions."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Protocol

import msgspec
from msgspec import Struct

from ropewalk.core.node_reports import NOTHING, build_latency, label_problem, merge_reports
from ropewalk.core.worker_reports import Counters, NodeAnswer, WorkerReport, WorkerReports
from ropewalk.engine.node import Node
from ropewalk.model.errors import Unavailable
from ropewalk.model.journal import ShardSpan
from ropewalk.model.report import SHUTTING_DOWN, Gauges, NodeReport
from ropewalk.ports import Inspector

logger = logging.getLogger("ropewalk.node")

PERIOD = 1.0  # seconds between two exchanges
ANSWER_SECONDS = 5.0
STORE = "store"

Exchange = Callable[[bytes], Awaitable[bytes]]
"""Brings a worker's report to the store process and returns its answer. Raises `Unavailable`."""

_answers = msgspec.msgpack.Decoder(NodeAnswer)


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


class Places(Protocol):
    """The connections of this process, and the limits that all processes share."""

    def clients(self) -> int: ...

    def http_connections(self) -> int: ...

    def set_elsewhere(self, clients: int, http: int) -> None:
        """Set the number of connections of the other processes."""


class Crowds(Protocol):
    """The users and addresses with many connections in this process, and the limits that all processes share."""

    def crowds(self) -> Mapping[str, int]: ...

    def set_elsewhere(self, crowds: Mapping[str, int]) -> None:
        """Set their numbers of connections in the other processes."""


class NodeWideInspector:
    """Implements `ports.Inspector` for a worker.

    Args:
        run: unique to each start of a process of this node.
        own: reports on this process only.
        process: returns the operating system's figures of this process.
    """

    def __init__(
        self,
        worker: str,
        run: str,
        own: Inspector,
        exchange: Exchange,
        places: Places,
        crowds: Crowds,
        process: Callable[[], Gauges],
    ) -> None:
        self._worker = worker
        self._run = run
        self._own = own
        self._exchange = exchange
        self._places = places
        self._crowds = crowds
        self._process = process
        self._store = ""
        self._counters: Counters = {}
        self._others = NOTHING
        self._problem = ""

    def report(self) -> NodeReport:
        own = self._mine()
        if self._problem:
            own = msgspec.structs.replace(own, problems=(*own.problems, self._problem))
        return merge_reports([self._others, own])

    async def run(self) -> None:
        """Exchange reports periodically. A failure is a problem in the report until an exchange succeeds."""
        while True:
            await self.exchange()
            await asyncio.sleep(PERIOD)

    async def exchange(self) -> None:
        """Exchange once. Also called before the first client is accepted: without the other processes' counters the metrics
        would look like a restart."""
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._ask({})
                if self._store not in ("", answer.store):
                    answer = await self._ask(self._counters)
        except (Unavailable, TimeoutError) as error:
            self._failed(str(error) or "no answer in time")
        except Exception:
            logger.exception("reports cannot be exchanged")
            self._failed("an exchange failed")
        else:
            self._apply(answer)

    async def _ask(self, former: Counters) -> NodeAnswer:
        report = self._mine()
        # A worker reports its own shutdown only in its own answers: the node's other workers go on.
        staying = tuple(problem for problem in report.problems if problem != SHUTTING_DOWN)
        mine = WorkerReport(self._run, msgspec.structs.replace(report, problems=staying), former)
        return _answers.decode(await self._exchange(msgspec.msgpack.encode(mine)))

    def _apply(self, answer: NodeAnswer) -> None:
        self._store, self._counters, self._problem = answer.store, answer.counters, ""
        self._others = merge_reports([answer.now, *answer.counters.values()])
        self._places.set_elsewhere(self._others.clients, self._others.http_connections)
        self._crowds.set_elsewhere(self._others.crowds)

    def _failed(self, reason: str) -> None:
        self._problem = label_problem(self._worker, f"nothing is heard of the node's other processes: {reason}")

    def _mine(self) -> NodeReport:
        report = self._own.report()
        return msgspec.structs.replace(
            report,
            problems=tuple(
                problem if problem == SHUTTING_DOWN else label_problem(self._worker, problem) for problem in report.problems
            ),
            clients=self._places.clients(),
            http_connections=self._places.http_connections(),
            crowds=self._crowds.crowds(),
            processes={f"worker-{self._worker}": self._process()},
        )


def reports_of_workers(own: Inspector, run: str, clock: Callable[[], float], process: Callable[[], Gauges]) -> WorkerReports:
    """For the store process, which is not a worker and has no clients. `clock` is monotonic, in seconds."""

    def store() -> NodeReport:
        return msgspec.structs.replace(own.report(), workers=0, processes={STORE: process()})

    return WorkerReports(store, run, clock)
