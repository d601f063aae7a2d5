"""What the journal costs a publisher: messages acknowledged a second under each durability, against `memory`.

Many publishers at once, each waiting for its answers: a group commit is made for that, and one alone would measure waiting.
"""

import tempfile
from contextlib import ExitStack
from pathlib import Path

from benchmarks.load.chorus import Chorus
from benchmarks.report import Figure, figure
from benchmarks.server import Server
from benchmarks.sizes import Sizes

NO_JOURNAL, MEMORY = "none", "memory"
AGAINST = {MEMORY: NO_JOURNAL, "journal": MEMORY, "fsync": MEMORY}
"""Durability → what it is measured against. What `memory` itself costs is the journal beside the live path."""

Rates = dict[str, list[float]]


def measure_append(sizes: Sizes) -> list[Figure]:
    """All servers run at once and take turns, so that a slow second of the machine hits each of them."""
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        choirs = {name: _chorus(stack, name, Path(directory) / name, sizes) for name in (NO_JOURNAL, *AGAINST)}
        ways = {1: sizes.append_messages, sizes.append_batch: sizes.append_batched_messages}
        rates = {batch: _rates(choirs, count, batch, sizes.append_rounds) for batch, count in ways.items()}
        for chorus in choirs.values():
            _check(chorus)
        return [_figure(name, batch, rates[batch], ways[batch], sizes) for batch in ways for name in AGAINST]


def _chorus(stack: ExitStack, durability: str, directory: Path, sizes: Sizes) -> Chorus:
    flags = () if durability == NO_JOURNAL else ("--data_dir", str(directory), "--durability", durability)
    server = stack.enter_context(Server(*flags))
    chorus = Chorus(server.address, sizes.append_publishers, sizes.row_bytes)
    stack.callback(chorus.close)
    return chorus


def _rates(choirs: dict[str, Chorus], count: int, batch: int, rounds: int) -> Rates:
    """The first round of each is a warm-up."""
    found: Rates = {name: [] for name in choirs}
    for counted in (False, *[True] * rounds):
        for name, chorus in choirs.items():
            rate = count / chorus.publish(count, batch)
            if counted:
                found[name].append(rate)
    return found


def _check(chorus: Chorus) -> None:
    if (registered := chorus.registered()) != chorus.published:
        raise AssertionError(f"{chorus.published} messages were acknowledged and {registered} are registered")


def _figure(durability: str, batch: int, rates: Rates, count: int, sizes: Sizes) -> Figure:
    against = AGAINST[durability]
    way = "one by one" if batch == 1 else f"batches of {batch}"
    title = f"publish with durability {durability} against {_name(against)}, {way}"
    found = figure(f"f{durability[0]}{batch}", title, "messages/s", rates[durability], rates[against], {})
    details: dict[str, float] = {
        "publishers": sizes.append_publishers,
        "batch": batch,
        "payload": sizes.row_bytes,
        "messages_a_round": count,
        "added_us_a_message": 1e6 / found.value - 1e6 / found.floor,
    }
    return figure(found.key, title, found.unit, rates[durability], rates[against], details)


def _name(durability: str) -> str:
    return "no journal" if durability == NO_JOURNAL else durability
