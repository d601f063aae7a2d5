"""Messages a second through the server on a core of its own: the load sends frames that were made beforehand and counts bytes.

`server_busy` in the details is the share of its core that the server used. Well below 1, the load was the bottleneck.
"""

import statistics
from collections.abc import Callable, Iterable
from functools import partial

from benchmarks.broky.load import Load
from benchmarks.broky.trips import CHECKED, EPHEMERAL, WORKERS
from benchmarks.cores import Cores, on_core
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure
from benchmarks.server import Program, Server
from benchmarks.sizes import Sizes

NOBODY_BAR = Bar("ratio", ">=", 2.5)


class Rounds:
    """Of one way through one server: messages a second, microseconds of processor time each, and the share of a core."""

    def __init__(self, server: Program) -> None:
        self._server = server
        self.rates: list[float] = []
        self.costs: list[float] = []
        self._busy: list[float] = []

    def take(self, count: int, move: Callable[[], float]) -> None:
        before = self._server.usage().processor
        seconds = move()
        spent = self._server.usage().processor - before
        self.rates.append(count / seconds)
        self.costs.append(spent * 1e6 / count)
        self._busy.append(spent / seconds)

    def details(self) -> dict[str, float]:
        return {"cpu_us_a_message": statistics.median(self.costs), "server_busy": statistics.median(self._busy)}


class Flows:
    """All rounds of one server and the floor, which alternate."""

    def __init__(self, load: Remote[Load], server: Server, relay: Program, sizes: Sizes, cores: Cores) -> None:
        self._load, self._server, self._relay = load, server, relay
        self._sizes, self._cores = sizes, cores

    def one_to_one(self) -> list[Figure]:
        """Also without subscribers, in the same rounds."""
        sizes, load = self._sizes, self._load
        self._open(1, [batch for batch, _ in sizes.broky_flows])
        before = self._server.published()
        floor = {batch: Rounds(self._relay) for batch, _ in sizes.broky_flows}
        served = {batch: Rounds(self._server) for batch, _ in sizes.broky_flows}
        nobody = {batch: Rounds(self._server) for batch, _ in sizes.broky_flows}
        for _ in range(sizes.broky_rounds):
            for batch, count in sizes.broky_flows:
                floor[batch].take(count, partial(load.call, Load.flow, "relay", count, batch))
                served[batch].take(count, partial(load.call, Load.flow, "served", count, batch))
                nobody[batch].take(count, partial(load.call, Load.forget, "served", count, batch))
        taken = self._server.published() - before
        if taken != (due := 2 * sizes.broky_rounds * sum(count for _, count in sizes.broky_flows)):
            raise AssertionError(f"the server received {taken} messages of {due} pushed, half of them without subscribers")
        self._close()
        figures = []
        for batch, count in sizes.broky_flows:
            title, details = f"runs of {batch}, {self._where()}", self._details(count, batch)
            to_one, to_none = details | served[batch].details(), details | nobody[batch].details()
            figures += [
                _rate(f"tf{batch}", f"push → deliver, 1 to 1, {title}", served[batch], floor[batch], to_one),
                _rate(f"tn{batch}", f"push to nobody, {title}", nobody[batch], served[batch], to_none, _nobody_bar(batch)),
            ]
        return figures

    def fan_in(self) -> list[Figure]:
        """Many producers with a key each, and one subscriber of all."""
        sizes, load, producers = self._sizes, self._load, self._sizes.broky_producers
        flows = [(batch, count // (producers * batch) * producers * batch) for batch, count in sizes.broky_flows[:2]]
        self._open(producers, [batch for batch, _ in flows])
        floor = {batch: Rounds(self._relay) for batch, _ in flows}
        served = {batch: Rounds(self._server) for batch, _ in flows}
        for _ in range(sizes.broky_rounds):
            for batch, count in flows:
                floor[batch].take(count, partial(load.call, Load.flow, "relay", count, batch))
                served[batch].take(count, partial(load.call, Load.flow, "served", count, batch))
        self._close()
        return [
            _rate(
                f"ti{batch}",
                f"fan-in of {producers} producers and keys, runs of {batch}, {self._where()}",
                served[batch],
                floor[batch],
                self._details(count, batch) | served[batch].details() | {"producers": producers},
            )
            for batch, count in flows
        ]

    def workers(self, several: Server) -> list[Figure]:
        """The largest runs, pushed at one of two workers and delivered by the other, against one process."""
        sizes, load = self._sizes, self._load
        batch, count = sizes.broky_flows[-1]
        load.call(Load.serve, "one", self._server.address, 1, sizes.broky_payload)
        load.call(Load.serve, "two", several.address, 1, sizes.broky_payload, several.pids())
        one, two = Rounds(self._server), Rounds(several)
        for route in ("one", "two"):
            load.call(Load.check, route, batch, CHECKED)
        for _ in range(sizes.broky_rounds):
            one.take(count, partial(load.call, Load.flow, "one", count, batch))
            two.take(count, partial(load.call, Load.flow, "two", count, batch))
        for route in ("one", "two"):
            load.call(Load.close, route)
        details = self._details(count, batch) | two.details() | {"workers": WORKERS}
        title = f"across {WORKERS} workers, runs of {batch}, all on core {self._cores.server}"
        return [
            figure("twc", f"{title}, a message", "µs of CPU", two.costs, one.costs, details),
            _rate("twr", title, two, one, details),
        ]

    def _open(self, producers: int, batches: Iterable[int]) -> None:
        sizes, load = self._sizes, self._load
        load.call(Load.relay, "relay", self._relay.address, producers, sizes.broky_payload)
        load.call(Load.serve, "served", self._server.address, producers, sizes.broky_payload)
        for batch in batches:
            load.call(Load.check, "served", batch, CHECKED)

    def _close(self) -> None:
        for route in ("relay", "served"):
            self._load.call(Load.close, route)

    def _details(self, count: int, batch: int) -> dict[str, float]:
        return {"messages_a_round": count, "batch": batch, "payload": self._sizes.broky_payload} | self._cores.details()

    def _where(self) -> str:
        return f"server on core {self._cores.server}"


def measure_flows(sizes: Sizes, cores: Cores) -> list[Figure]:
    with on_core(cores.load), Remote(Load) as load:
        with on_core(cores.server):
            relay, server = Program("benchmarks.broky.relay"), Server(*EPHEMERAL)
            several = Server(*EPHEMERAL, "--workers", str(WORKERS))
        with relay, server, several:
            flows = Flows(load, server, relay, sizes, cores)
            return [*flows.one_to_one(), *flows.fan_in(), *flows.workers(several)]


def _rate(key: str, title: str, found: Rounds, floor: Rounds, details: dict[str, float], bar: Bar | None = None) -> Figure:
    return figure(key, title, "messages/s", found.rates, floor.rates, details, bar)


def _nobody_bar(batch: int) -> Bar | None:
    """In large runs both do little else than move bytes."""
    return NOBODY_BAR if batch < 100 else None
