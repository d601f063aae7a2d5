"""`python -m benchmarks [--only fanout,storm] [--quick] [--output FILE]`: measure, print the table, write the record.

Exits with an error if a count is wrong, not if a figure is low: the table marks missed bars.
"""

import argparse
import resource
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.company import Company, keeping_descendants
from benchmarks.parts import PARTS, left_out, measure
from benchmarks.report import Run, as_json, as_table, machine, warning
from benchmarks.sizes import FULL, QUICK

LATEST = Path(__file__).parent / "results" / "latest.json"


def main(argv: Sequence[str]) -> int:
    options = _options(argv)
    sizes = QUICK if options.quick else FULL
    _allow_descriptors(sizes.descriptors())
    absent = left_out(options.only)
    with keeping_descendants():
        before = Company.now()
        figures = sorted(measure([part for part in options.only if part not in absent], sizes), key=lambda found: found.key)
    seconds, others = before.until(Company.now())
    print(as_table(figures))
    for part, hint in absent.items():
        print(f"{part} was not measured: {hint}")
    print(warning(others))
    if output := options.output or _usual_output(options):
        run = Run(_command(options), datetime.now(UTC).date().isoformat(), seconds, others, machine(), figures, absent)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(as_json(run))
    return 0


def _options(argv: Sequence[str]) -> argparse.Namespace:
    parts = "; ".join(f"{name} ({part.what})" for name, part in PARTS.items())
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
