"""`ropewalk prove`: runs the simulation, and prints a summary, a digest of the history and any violation of the contract."""

import argparse
import logging
import secrets
from collections.abc import Iterator
from contextlib import contextmanager

import msgspec

from ropewalk.cli.output import ProgressLine
from ropewalk.model.errors import UserMistake
from ropewalk.testing.simulation.steps import ACTIONS, NEEDED, shortest, simulate
from ropewalk.testing.simulation.world import FAULTS, Plan, Report

SUMMARY = "simulate nodes, clients and failures, and check the contract at each step"

OPTIONAL = tuple(name for name in (*FAULTS, *ACTIONS) if name not in NEEDED)


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="ropewalk prove",
        description=f"{SUMMARY[0].upper()}{SUMMARY[1:]}. No network, no server, virtual time; a seed determines the run.",
        allow_abbrev=False,
    )
    parser.add_argument("--steps", type=int, default=100_000, help="number of actions; 100000 by default")
    parser.add_argument("--seed", type=int, help="the same seed gives the same history; random by default, and printed")
    parser.add_argument("--nodes", type=int, default=3, help="nodes over one store; 3 by default")
    parser.add_argument("--clients", type=int, default=12, help="clients; 12 by default")
    parser.add_argument("--streams", type=int, default=6, help="streams; 6 by default")
    parser.add_argument(
        "--without", default="", metavar="NAMES", help=f"comma-separated actions and faults to leave out: {', '.join(OPTIONAL)}"
    )
    wanted = parser.parse_args(argv)
    without = frozenset(filter(None, wanted.without.split(",")))
    if unknown := without - set(OPTIONAL):
        raise UserMistake(f"--without: unknown {', '.join(sorted(unknown))}; possible are {', '.join(OPTIONAL)}")
    for name in ("steps", "nodes", "clients", "streams"):
        if getattr(wanted, name) < 1:
            raise UserMistake(f"--{name} must be at least 1, not {getattr(wanted, name)}")
    seed = secrets.randbelow(1_000_000) if wanted.seed is None else wanted.seed
    plan = Plan(seed, wanted.steps, wanted.nodes, wanted.clients, wanted.streams, without)
    with _without_log():
        return _prove(plan)


def _prove(plan: Plan) -> int:
    with ProgressLine(_progress_text) as progress:
        report = simulate(plan, lambda steps: progress(steps, plan.steps))
    print("\n".join(_summary(report)))
    if not report.anomaly:
        return 0
    with ProgressLine(_progress_text) as progress:
        smaller, found = shortest(plan, report, lambda steps: progress(steps, report.steps))
    print("\n".join(_failure(smaller, found)))
    return 1


@contextmanager
def _without_log() -> Iterator[None]:
    """Suppress the log: failures in the simulation are intended."""
    logger = logging.getLogger("ropewalk")
    before = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(before)


def _progress_text(done: int, total: int) -> str:
    return f"step {done:,} of {total:,}"


def _summary(report: Report) -> list[str]:
    faults = msgspec.structs.asdict(report.faults)
    lines = [
        f"seed {report.seed}: {report.steps:,} steps, {report.seconds / 3600:,.1f} hours of virtual time",
        f"  digest of the history     {report.digest:>16}",
        f"  publications registered   {report.registered:>16,}",
        f"  deliveries checked        {report.delivered:>16,}",
        f"  sessions restored         {report.restored:>16,}",
        f"    from a half-open link   {report.taken_over:>16,}",
        f"  sessions ended            {report.sessions_over:>16,}",
        f"  presence events           {report.presence_events:>16,}",
        f"  streams filled from store {report.filled:>16,}",
        f"  gap notices               {report.gaps:>16,}",
    ]
    lines += [f"  {name.replace('_', ' '):<25} {count:>16,}" for name, count in sorted(report.actions.items())]
    lines += [f"  feed or store: {name.replace('_', ' '):<12}{count:>15,}" for name, count in faults.items()]
    return [*lines, f"anomalies: {1 if report.anomaly else 0}"]


def _failure(plan: Plan, report: Report) -> list[str]:
    sizes = f"--nodes {plan.nodes} --clients {plan.clients} --streams {plan.streams}"
    without = f" --without {','.join(sorted(plan.without))}" if plan.without else ""
    return [
        "shortest history found:",
        f"  ropewalk prove --seed {plan.seed} --steps {report.steps} {sizes}{without}",
        *report.history,
        report.anomaly,
    ]
