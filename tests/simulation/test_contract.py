"""The simulation finds no violation of the contract, whatever fails, and covers every action and fault."""

import pytest

from ropewalk.model import history
from ropewalk.model.history import MESSAGE_OVERHEAD_BYTES
from ropewalk.testing.simulation.steps import ACTIONS, simulate
from ropewalk.testing.simulation.world import FAULTS, Plan, Report

RARE_ACTIONS = {"store_away", "store_lost"}
"""Some of the runs are too short for these."""


def assert_contract_held(report: Report) -> None:
    assert (report.anomaly, list(report.history)) == ("", [])
    assert min(getattr(report.faults, fault) for fault in FAULTS) > 0
    assert min(report.registered, report.delivered, report.restored, report.filled, report.gaps) > 0


def test_contract_holds_in_a_short_run() -> None:
    assert_contract_held(simulate(Plan(1, 2_000)))


@pytest.mark.tier("all")
@pytest.mark.parametrize("seed", [1, 2, 3, 4])
def test_contract_holds_while_every_action_happens(seed: int) -> None:
    report = simulate(Plan(seed, 5_000))
    assert_contract_held(report)
    assert set(report.actions) >= set(ACTIONS) - RARE_ACTIONS
    assert min(report.taken_over, report.sessions_over, report.presence_events) > 0


@pytest.mark.parametrize(
    ("seeds", "steps"), [((1,), 1_000), pytest.param((1, 2), 3_000, marks=pytest.mark.tier("all"))], ids=["short", "long"]
)
@pytest.mark.parametrize("action", ["store_away", "store_lost"])
def test_contract_holds_while_the_store_often_fails(
    monkeypatch: pytest.MonkeyPatch, action: str, seeds: tuple[int, ...], steps: int
) -> None:
    monkeypatch.setitem(ACTIONS, action, (0.5 * 3_000 / steps, ACTIONS[action][1]))
    reports = [simulate(Plan(seed, steps)) for seed in seeds]
    assert [(report.anomaly, list(report.history)) for report in reports] == [("", [])] * len(seeds)
    assert sum(report.actions[action] for report in reports) > 5 * len(seeds)


@pytest.mark.parametrize(("nodes", "clients", "streams"), [(1, 1, 1), (1, 12, 1), (5, 3, 2)])
def test_contract_holds_for_any_number_of_nodes_clients_and_streams(nodes: int, clients: int, streams: int) -> None:
    assert simulate(Plan(5, 1_000, nodes, clients, streams)).anomaly == ""


@pytest.mark.parametrize("answer_bytes", [MESSAGE_OVERHEAD_BYTES + 50, 3 * MESSAGE_OVERHEAD_BYTES])
def test_contract_holds_while_histories_are_read_in_many_answers(monkeypatch: pytest.MonkeyPatch, answer_bytes: int) -> None:
    monkeypatch.setattr(history, "MAX_ANSWER_BYTES", answer_bytes)
    assert_contract_held(simulate(Plan(1, 2_000)))
