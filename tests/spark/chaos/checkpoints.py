"""What a dead driver left behind: which batches it was at, and which of them had reached their sink already."""

import json
import urllib.request
from collections import Counter
from pathlib import Path

from deltalake import DeltaTable


def newest(log: Path) -> int:
    """The greatest number among the entries of one of Spark's logs; -1 for none."""
    return max((int(entry.name) for entry in log.iterdir() if entry.name.isdigit()), default=-1) if log.exists() else -1


class Checkpoints:
    """Those of all queries of one scenario."""

    def __init__(self, home: Path, url: str) -> None:
        self._home = home
        self._url = url

    def done(self, query: str) -> int:
        """Batches whose end Spark has noted."""
        return newest(self._home / "checkpoints" / query / "commits") + 1

    def begun(self, query: str) -> int:
        """Batches that Spark has planned."""
        return newest(self._home / "checkpoints" / query / "offsets") + 1

    def reached(self, query: str) -> dict[str, int]:
        """The positions below which a query has done everything, by shard; nothing while it is at a batch."""
        begun = newest(self._home / "checkpoints" / query / "offsets")
        if begun < 0 or begun >= self.done(query):
            return {}
        # The first line is a version, the second Spark's own, the third what our source gave it.
        line = (self._home / "checkpoints" / query / "offsets" / str(begun)).read_text().splitlines()[2]
        return {shard: mark["p"] for shard, mark in json.loads(line).items()}

    def post_mortem(self, queries: list[str]) -> Counter[str]:
        """Of a dead driver, by query: whether it died in a batch, and whether the sink had committed it."""
        found: Counter[str] = Counter()
        for query in queries:
            begun = newest(self._home / "checkpoints" / query / "offsets")
            if begun >= self.done(query):
                found["within a batch"] += 1
                if self._committed(query) >= begun:
                    found["after the sink's commit, before Spark noted it"] += 1
        return found

    def _committed(self, query: str) -> int:
        match query:
            case "archive":
                return self._archived(self._app(query))
            case "transactional":
                return self._last(self._app(query))
            case _:
                return -1  # without commits: rows are published as tasks run

    def _app(self, query: str) -> str:
        query_id: str = json.loads((self._home / "checkpoints" / query / "metadata").read_text())["id"]
        return query_id

    def _archived(self, app: str) -> int:
        root = str(self._home / "archive")
        version = DeltaTable(root).transaction_version(app) if DeltaTable.is_deltatable(root) else None
        return -1 if version is None else version

    def _last(self, app: str) -> int:
        with urllib.request.urlopen(f"{self._url}/journal/transactions/{app}") as answer:
            last = json.load(answer)["last"]
        return -1 if last is None else int(last)
