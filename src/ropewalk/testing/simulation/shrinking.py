"""Shrinks a failed simulation: fewer streams, clients, nodes, actions and faults, with the same kind of failure."""

from collections.abc import Callable, Iterator

from msgspec.structs import replace

from ropewalk.testing.simulation.steps import ACTIONS, NEEDED, simulate
from ropewalk.testing.simulation.world import FAULTS, Plan, Report

SEEDS = 8
"""Seeds to try for each smaller plan: its history is different in any case."""


def shortest(plan: Plan, report: Report, progress: Callable[[int], None] = lambda steps: None) -> tuple[Plan, Report]:
    """The failed `plan` and its report, or a smaller plan that fails in the same way."""
    plan = replace(plan, steps=report.steps)
    for smaller in _smaller(plan):
        found = _fails_alike(smaller(plan), report, progress)
        if found is not None:
            plan, report = found
    return plan, report


def _smaller(plan: Plan) -> Iterator[Callable[[Plan], Plan]]:
    for name in (*FAULTS, *ACTIONS):
        if name not in NEEDED:
            yield lambda plan, name=name: replace(plan, without=plan.without | {name})  # type: ignore[misc]
    yield lambda plan: replace(plan, streams=1)
    for _ in range(3):
        yield lambda plan: replace(plan, clients=max(1, plan.clients // 2))
        yield lambda plan: replace(plan, nodes=max(1, plan.nodes - 1))


def _fails_alike(plan: Plan, report: Report, progress: Callable[[int], None]) -> tuple[Plan, Report] | None:
    best: tuple[Plan, Report] | None = None
    for seed in range(plan.seed, plan.seed + SEEDS):
        tried = replace(plan, seed=seed, steps=plan.steps if best is None else best[1].steps)
        found = simulate(tried, progress)
        if found.kind is report.kind and (best is None or found.steps < best[1].steps):
            best = (replace(tried, steps=found.steps), found)
    return best
