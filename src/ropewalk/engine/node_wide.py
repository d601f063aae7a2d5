"""The report of a node of several processes. Each worker can return it: its own report, made at the call, and those of the
others from its last exchange with the store process, about a second ago."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import msgspec

from ropewalk.core.node_reports import NOTHING, label_problem, merge_reports
from ropewalk.core.worker_reports import Counters, NodeAnswer, WorkerReport, WorkerReports
from ropewalk.model.errors import Unavailable
from ropewalk.model.report import SHUTTING_DOWN, Gauges, NodeReport
from ropewalk.ports import Inspector

logger = logging.getLogger("ropewalk.node")

PERIOD = 1.0  # seconds between two exchanges
ANSWER_SECONDS = 5.0
STORE = "store"

Exchange = Callable[[bytes], Awaitable[bytes]]
"""Brings a worker's report to the store process and returns its answer. Raises `Unavailable`."""

_answers = msgspec.msgpack.Decoder(NodeAnswer)


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
