"""One message after another, from push to delivery, against an echo of the same bytes.

Once with everything on one core, where nothing but work is measured; once with the load on a core of its own, as clients are,
where wake-ups across cores are most of what an echo takes.
"""

import statistics
from contextlib import ExitStack

from benchmarks.broky.load import Load
from benchmarks.cores import Cores, on_core
from benchmarks.remote import Remote
from benchmarks.report import Bar, Figure, figure, milliseconds
from benchmarks.server import Program, Server
from benchmarks.sizes import Sizes

EPHEMERAL = ("--history_limit", "0")
WORKERS = 2
HALF_BAR = Bar("ratio", "<=", 2.0)
LAST_BAR = Bar("ratio", "<=", 3.0)
ACROSS_BAR = Bar("ratio", "<=", 4.0)
Trips = list[list[float]]
"""The seconds of each, by rounds."""

CHECKED = 10
"""Runs whose messages are read before a kind of round is timed."""


def measure_trips(sizes: Sizes, cores: Cores) -> list[Figure]:
    shared = Cores(cores.server, cores.server)
    return [*_shared_core(_trips(sizes, shared), _details(sizes, shared)), _apart(_trips(sizes, cores), _details(sizes, cores))]


def _trips(sizes: Sizes, cores: Cores) -> dict[str, Trips]:
    with ExitStack() as running:
        with on_core(cores.load):
            load = running.enter_context(Remote(Load))
        with on_core(cores.server):
            echo = running.enter_context(Program("benchmarks.broky.relay"))
            single = running.enter_context(Server(*EPHEMERAL))
            several = running.enter_context(Server(*EPHEMERAL, "--workers", str(WORKERS)))
        load.call(Load.echo, "echo", echo.address, sizes.broky_payload)
        load.call(Load.serve, "one", single.address, 1, sizes.broky_payload)
        load.call(Load.serve, "two", several.address, 1, sizes.broky_payload, several.pids())
        found: dict[str, Trips] = {"echo": [], "one": [], "two": []}
        for route in ("one", "two"):
            load.call(Load.check, route, 1, CHECKED)
        for counted in (False, *[True] * sizes.broky_rounds):
            for route, rounds in found.items():
                seconds = load.call(Load.trips, route, sizes.broky_trips)
                if counted:  # warm-up
                    rounds.append(seconds)
    return found


def _details(sizes: Sizes, cores: Cores) -> dict[str, float]:
    return {"trips_a_round": sizes.broky_trips, "payload": sizes.broky_payload, **cores.details()}


def _shared_core(found: dict[str, Trips], details: dict[str, float]) -> list[Figure]:
    where = f"all on core {details['server_core']:g}"
    title, across = f"push → deliver one by one, {where}", f"the same across {WORKERS} workers, {where}"
    half, last = _percentiles(found["echo"], 50), _percentiles(found["echo"], 99)
    return [
        figure("te50", f"{title}, p50", "µs", _percentiles(found["one"], 50), half, details, HALF_BAR),
        figure("te99", f"{title}, p99", "µs", _percentiles(found["one"], 99), last, details, LAST_BAR),
        figure("txs", f"{across}, p50", "µs", _percentiles(found["two"], 50), half, _of_workers(found["two"], details)),
    ]


def _apart(found: dict[str, Trips], details: dict[str, float]) -> Figure:
    where = f"server on core {details['server_core']:g}, load on {details['load_core']:g}"
    title = f"push → deliver across {WORKERS} workers, {where}, p50"
    half = _percentiles(found["echo"], 50)
    return figure("tx50", title, "µs", _percentiles(found["two"], 50), half, _of_workers(found["two"], details), ACROSS_BAR)


def _of_workers(rounds: Trips, details: dict[str, float]) -> dict[str, float]:
    return details | {"p99_us": statistics.median(_percentiles(rounds, 99)), "workers": WORKERS}


def _percentiles(rounds: Trips, percentile: int) -> list[float]:
    return [milliseconds(each, percentile) * 1000 for each in rounds]
