"""Vacuum: deletes files that readers and writers no longer need.

Invariant: a file goes only if no commit since the retention names it, and if it cannot belong to a commit that is still
under way. The commits decide, not only the clock: the name of a file contains its batch.
"""

import json
import re
import time
from collections.abc import Iterator
from contextlib import suppress
from datetime import timedelta
from math import inf
from pathlib import Path
from urllib.parse import unquote

from deltalake import DeltaTable

from ropewalk.pipeline.archive.log import add_actions, opened

RETENTION = timedelta(hours=24)
"""Longer than any reader that began with an older state of the table."""

OPEN_COMMIT = timedelta(hours=24)
"""How long a file whose batch is not committed is taken for one of a commit that is still to come."""

WRITTEN = re.compile(r"(?P<app>.+)-(?P<batch>\d+)-\d+-\d+-[0-9a-f]{8}(\.g\d+)?(\.[0-9a-f]{16})?\.parquet")
"""The names that the archive sink gives: application, batch, task, attempt, chance, and what the file holds."""


def vacuum(root: str, retention: timedelta = RETENTION, dry_run: bool = False, force: bool = False) -> list[str]:
    """The files that were deleted, or with `dry_run` would be. `force` also deletes files of commits that may be under way."""
    table = opened(root)
    if table is None:
        return []
    now = time.time()
    since = now - retention.total_seconds()
    open_since = since if force else min(since, now - OPEN_COMMIT.total_seconds())
    place, names = Path(root).absolute(), _names(table, Path(root), open_since)
    gone: list[str] = []
    for path in _data_files(place):
        name = str(path.relative_to(place))
        with suppress(FileNotFoundError):  # another vacuum
            limit = since if name in names or not _may_be_open(table, path.name) else open_since
            if names.get(name, 0.0) <= since and path.stat().st_mtime <= limit:
                gone.append(name)
                if not dry_run:
                    path.unlink()
    return gone


def _data_files(root: Path) -> Iterator[Path]:
    for path in sorted(root.rglob("*.parquet")):
        if not any(part.startswith(("_", ".")) for part in path.relative_to(root).parts):
            yield path


def _names(table: DeltaTable, root: Path, begin: float) -> dict[str, float]:
    """The files that commits since `begin` name, with the time they were last named: infinity for files of the current table,
    else the time of the commit that added or removed them. A log that was cleaned up starts later."""
    names: dict[str, float] = {}
    for version in range(table.version(), -1, -1):
        try:
            lines = (root / "_delta_log" / f"{version:020}.json").read_text().splitlines()
        except FileNotFoundError:
            break
        actions = [json.loads(line) for line in lines if line.strip()]
        committed = next((each["commitInfo"].get("timestamp", inf) / 1000 for each in actions if "commitInfo" in each), inf)
        if committed < begin:
            break
        for action in actions:
            for kind in action.keys() & {"add", "remove"}:
                names.setdefault(unquote(action[kind]["path"]), committed)
    return names | dict.fromkeys(add_actions(table)["path"].to_pylist(), inf)


def _may_be_open(table: DeltaTable, name: str) -> bool:
    """Whether a commit may still come that names the file: it has no known batch, or its batch is not committed yet."""
    match = WRITTEN.fullmatch(name)
    committed = table.transaction_version(match["app"]) if match else None
    return match is None or committed is None or int(match["batch"]) > committed
