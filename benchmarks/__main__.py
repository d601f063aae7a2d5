"""`python -m benchmarks [--only fanout,storm] [--quick] [--output FILE]`: measure, print the table, write the record.

It fails when a count is wrong, never because a figure is low: a bar that is missed is said in the table.
"""

import argparse
import resource
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.company import Company
from benchmarks.fanout import measure_fanout
from benchmarks.floor import Floor
from benchmarks.latency import measure_latency
from benchmarks.load.field import Field
from benchmarks.memory import measure_memory
from benchmarks.pair import Pair
from benchmarks.remote import Remote
from benchmarks.report import Figure, Run, as_json, as_table, machine, warning
from benchmarks.server import Server
from benchmarks.sizes import FULL, QUICK, Sizes
from benchmarks.storm import measure_storm

LATEST = Path(__file__).parent / "results" / "latest.json"
PARTS = {
    "fanout": "a, b: deliveries a second to many subscribers, one by one and in batches",
    "latency": "d: publish to last subscriber at a fixed rate",
    "memory": "c: resident memory of an idle connection",
    "storm": "e: all connections cut, until all are whole again",
}


def main(argv: Sequence[str]) -> int:
    options = _options(argv)
    sizes = QUICK if options.quick else FULL
    _allow_descriptors(sizes.descriptors())
    before = Company.now()
    figures = _measure(options.only, sizes)
    seconds, others = before.until(Company.now())
    print(as_table(figures))
    print(warning(others))
    if output := options.output or _usual_output(options):
        run = Run(_command(options), datetime.now(UTC).date().isoformat(), seconds, others, machine(), figures)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(as_json(run))
    return 0


def _measure(parts: Sequence[str], sizes: Sizes) -> list[Figure]:
    """A fresh server for each kind of state; pair rounds share one, so that floor and server alternate on the same sockets."""
    figures: list[Figure] = []
    with Remote(Floor) as floor, Remote(Field) as field:
        if "fanout" in parts or "latency" in parts:
            figures += _measure_pair(parts, floor, field, sizes)
        if "memory" in parts:
            with Server() as server:
                figures += measure_memory(server, field, sizes)
        if "storm" in parts:
            with Server("--history_limit", "10000") as server:
                figures += measure_storm(server, floor, field, sizes)
    return sorted(figures, key=lambda found: found.key)


def _measure_pair(parts: Sequence[str], floor: Remote[Floor], field: Remote[Field], sizes: Sizes) -> list[Figure]:
    figures: list[Figure] = []
    with Server() as server:
        pair = Pair(server, floor, field, sizes)
        if "fanout" in parts:
            figures += measure_fanout(pair, sizes)
        if "latency" in parts:
            figures += measure_latency(pair, sizes)
        pair.close()
    return figures


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parts = "; ".join(f"{name} ({what})" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure the server against its floor.")
    parser.add_argument("--only", type=_parts, default=list(PARTS), help=f"some of these, with commas: {parts}")
    parser.add_argument("--quick", action="store_true", help="a few seconds with small counts: shows only that it works")
    parser.add_argument("--output", type=Path, help="where the JSON goes; a full run goes to benchmarks/results/latest.json")
    return parser.parse_args(argv)


def _parts(text: str) -> list[str]:
    chosen = text.split(",")
    if unknown := set(chosen) - set(PARTS):
        raise argparse.ArgumentTypeError(f"no such part: {', '.join(sorted(unknown))}")
    return chosen


def _usual_output(options: argparse.Namespace) -> Path | None:
    """Only a full run is worth keeping."""
    return None if options.quick or set(options.only) != set(PARTS) else LATEST


def _command(options: argparse.Namespace) -> str:
    only = [] if set(options.only) == set(PARTS) else ["--only", ",".join(options.only)]
    return " ".join(["python -m benchmarks", *only, *(["--quick"] if options.quick else [])])


def _allow_descriptors(needed: int) -> None:
    """The children inherit it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < needed:
        sys.exit(f"this run opens {needed} files in one process and the limit is {hard}: raise it with `ulimit -Hn {needed}`")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
