"""The same seed gives the same history: in one process, and in processes that differ in hash seeds and garbage collection."""

import os
import re
import secrets
import subprocess
import sys

import pytest

from ropewalk.testing.simulation.steps import simulate
from ropewalk.testing.simulation.world import Plan

PROVE = """\
import gc, sys
threshold = int(sys.argv.pop(1))
if threshold > 10_000:
    gc.freeze()
gc.set_threshold(threshold, 5, 5)
from ropewalk.cli.main import main
sys.exit(main(["prove", *sys.argv[1:]]))
"""

PROCESSES = {0: 700, 12345: 50, 1: 50_000}
"""Hash seed → threshold of the garbage collector."""


def start_prove(plan: Plan, hash_seed: int) -> subprocess.Popen[str]:
    """Start `ropewalk prove` with this hash seed."""
    sizes = ("--nodes", plan.nodes, "--clients", plan.clients, "--streams", plan.streams)
    words = (PROCESSES[hash_seed], "--seed", plan.seed, "--steps", plan.steps, *sizes)
    return subprocess.Popen(
        [sys.executable, "-c", PROVE, *map(str, words)],
        env={**os.environ, "PYTHONHASHSEED": str(hash_seed)},
        stdout=subprocess.PIPE,
        text=True,
    )


def assert_same_history(plan: Plan, *hash_seeds: int) -> None:
    processes = [start_prove(plan, hash_seed) for hash_seed in hash_seeds]
    outputs = [process.communicate()[0] for process in processes]
    assert re.search(r"^  digest of the history +[0-9a-f]{16}$", outputs[0], re.M)
    assert outputs == outputs[:1] * len(outputs)
    assert [process.returncode for process in processes] == [0] * len(processes)


def test_same_seed_gives_the_same_report_in_one_process() -> None:
    first, again, other = (simulate(Plan(seed, 1_000)) for seed in (9, 9, 10))
    assert first == again
    assert first.digest != other.digest


def test_digest_depends_on_every_step() -> None:
    assert len({simulate(Plan(9, steps)).digest for steps in range(1, 20)}) == 19


def test_random_names_follow_from_the_seed() -> None:
    def random_names(seed: int) -> list[str]:
        names: list[str] = []
        simulate(Plan(seed, 3), progress=lambda steps: names.append(secrets.token_urlsafe(16)))
        return names

    assert random_names(9) == random_names(9) != random_names(10)


@pytest.mark.tier("standard")
def test_same_seed_gives_the_same_history_under_different_hash_seeds() -> None:
    assert_same_history(Plan(7, 2_000), 0, 12345)


@pytest.mark.tier("all")
@pytest.mark.parametrize(("seed", "nodes", "clients", "streams"), [(2, 3, 12, 6), (3, 5, 20, 9), (4, 2, 5, 3)])
def test_same_seed_gives_the_same_history_for_any_size(seed: int, nodes: int, clients: int, streams: int) -> None:
    assert_same_history(Plan(seed, 10_000, nodes, clients, streams), *PROCESSES)


@pytest.mark.tier("all")
@pytest.mark.timeout(1800)
def test_same_seed_gives_the_same_history_for_100_000_steps() -> None:
    assert_same_history(Plan(1, 100_000), 0, 12345)
