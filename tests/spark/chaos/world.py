"""The processes to kill and restart: the server with its data, and the drivers with their checkpoints."""

import contextlib
import json
import random
import urllib.request
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

from tests.server import RunningServer, running_server
from tests.spark.chaos.checkpoints import Checkpoints
from tests.spark.chaos.processes import Child, Driver, reports

# Few shards, for each is a task in every batch.
FLAGS = ("--public", "--durability", "journal", "--journal_shards", "3", "--dedup_ttl", "3600s")
FINISHED = "transaction finished after a restart"


class Setting(NamedTuple):
    """`flags` of the server; `queries` by driver, and `paced`, those of them that have to end a batch between two kills.

    `tended`: there is a process that compacts and vacuums the archive.
    """

    flags: tuple[str, ...]
    queries: dict[str, list[str]]
    paced: tuple[str, ...]
    tended: bool = False


# Small segments, so that they roll while all this goes on.
SINKS = Setting(
    ("--journal_segment_size", "1MiB", "--history_limit", "5000"),
    {"archive": ["archive"], "sinks": ["transactional", "idempotent", "keyed"]},
    ("archive", "transactional", "idempotent", "keyed"),
)

# The journal keeps some seconds, and the hot history less: readers go through all three. Sessions of disconnected readers end
# soon, because each end is a row, and the final comparison needs a journal that does not grow.
TIERS = Setting(
    ("--journal_segment_size", "16KiB", "--journal_retention_size", "64KiB", "--history_limit", "50", "--sessions_ttl", "3s"),
    {"tiers": ["archive", "copy"]},
    ("archive",),
    tended=True,
)


class World:
    """One server and its drivers, each behind the same address and on the same directory in all of its runs."""

    def __init__(self, home: Path, setting: Setting = SINKS) -> None:
        self.home = home
        (home / "archive").mkdir()  # readers refuse a directory that does not exist, and may start before the first commit
        self.queries = setting.queries
        self._setting = setting
        self.counts: Counter[str] = Counter()
        self._stack = contextlib.ExitStack()
        self._flags = (*FLAGS, *setting.flags, "--data_dir", str(home / "data"), "--archive_dir", str(home / "archive"))
        self.server = self._serve(0)
        self.checkpoints = Checkpoints(home, self.server.url)
        self._begun: dict[str, dict[str, int]] = {}
        self.drivers = {kind: self._drive(kind) for kind in self.queries}
        self._tending = self._tend() if setting.tended else None

    def close(self) -> None:
        """By kills, without an orderly stop."""
        self.server.kill()
        self._stack.close()
        if self._tending:
            self._tending.kill()
        self.stop_archiving()

    # --- kill and start again -----------------------------------------------------------------------------------------

    def kill_server(self) -> str:
        self.server.kill()
        self.server = self._serve(self.server.port)
        self.counts["transactions that a restarted server finished"] += FINISHED in self.server.log()
        for kind in self.queries:
            self._begin(kind)
        return ""

    def kill_tending(self) -> str:
        assert self._tending is not None
        self._tending.kill()
        self._tending = self._tend()
        return ""

    def kill_driver(self, kind: str, jvm: bool) -> str:
        driver = self.drivers[kind]
        if jvm:
            driver.kill_jvm()
        else:
            driver.kill()
        found = self.checkpoints.post_mortem(self.queries[kind])
        self.counts.update({f"queries killed {where}": count for where, count in found.items()})
        self.drivers[kind] = self._drive(kind)
        return f"{kind}: {', '.join(found) or 'between batches'}"

    def kill_worker(self, kind: str, chance: random.Random) -> str:
        """Spark starts another one. One that plans or commits takes its query with it, and the driver starts that again."""
        role = self.drivers[kind].kill_worker(chance)
        self._begin(kind)
        return f"{kind}: {role}"

    def stop_archiving(self) -> None:
        """For good, at any point of a batch: later messages are only in the journal."""
        for driver in self.drivers.values():
            driver.aim()
            driver.kill_jvm()

    def restart_server(self) -> None:
        """An orderly restart: writes without acknowledgement are completed too."""
        assert self.server.stop() == 0, self.server.log()
        self.server = self._serve(self.server.port)

    def _serve(self, port: int) -> RunningServer:
        return self._stack.enter_context(running_server(*self._flags, "--port", str(port)))

    def _drive(self, kind: str) -> Driver:
        self._begin(kind)
        return Driver(kind, self.server.url, self.home, self._log(kind))

    def _tend(self) -> Child:
        return Child("upkeep", self._log("tending"), str(self.home / "archive"))

    def _begin(self, kind: str) -> None:
        paced = [query for query in self.queries[kind] if query in self._setting.paced]
        self._begun[kind] = {query: self.checkpoints.done(query) for query in paced}

    # --- how they do --------------------------------------------------------------------------------------------------

    def at_work(self, kind: str) -> bool:
        """Whether every paced query of a driver has ended a batch since something happened to it."""
        self._check()
        return all(self.checkpoints.done(query) > begun for query, begun in self._begun[kind].items())

    def caught_up(self) -> bool:
        """Whether every query has processed all rows of the journal."""
        with urllib.request.urlopen(f"{self.server.url}/journal") as answer:
            ends = {str(span["shard"]): span["end"] for span in json.load(answer)["spans"]}
        self._check()
        return all(self.checkpoints.reached(query) == ends for queries in self.queries.values() for query in queries)

    def deserted(self) -> bool:
        """Whether all sessions are over for good."""
        with urllib.request.urlopen(f"{self.server.url}/metrics") as answer:
            metrics = dict(line.rsplit(" ", 1) for line in answer.read().decode().splitlines() if not line.startswith("#"))
        return not any(float(metrics[name]) for name in ("ropewalk_sessions", "ropewalk_sessions_kept"))

    def trimmed(self) -> bool:
        """Whether the journal has let go of its beginning in every shard that has rows."""
        with urllib.request.urlopen(f"{self.server.url}/journal") as answer:
            spans = json.load(answer)["spans"]
        self._check()
        return bool(spans) and all(span["first"] > 0 for span in spans if span["end"] > 0)

    def tended(self) -> list[list[int]]:
        """Of every round: files that were compacted, files they became, rows rewritten, files vacuumed."""
        return [[int(word) for word in line.split()] for line in reports(self._log("tending"), "tended")]

    def _check(self) -> None:
        for kind, driver in self.drivers.items():
            assert not driver.ended(), f"the driver {kind} gave up:\n{self.log(kind)}"
        assert self._tending is None or not self._tending.ended(), (
            f"the maintenance of the archive has ended:\n{self.log('tending')}"
        )

    def commits(self, kind: str) -> int:
        """Grows when a sink has committed a batch, before Spark has recorded that."""
        if "archive" in self.queries[kind]:
            return len(list((self.home / "archive" / "_delta_log").glob("*.json")))
        return sum((state["last"] or 0) for state in self._transactions())

    def decided(self) -> bool:
        """Whether the server has decided a transaction and not yet published all of it."""
        return any(state["decided"] for state in self._transactions())

    def _transactions(self) -> list[dict[str, Any]]:
        return [json.loads(state.read_bytes()) for state in (self.home / "data" / "transactions").glob("*/state.json")]

    def failed_queries(self) -> list[str]:
        return [failure for kind in self.queries for failure in reports(self._log(kind), "failed")]

    def describe(self) -> str:
        """The state of all processes, for the report of a failure."""
        return "\n".join(self._describe(kind) for kind in self.queries)

    def _describe(self, kind: str) -> str:
        batches = {query: (self.checkpoints.done(query), self.checkpoints.begun(query)) for query in self.queries[kind]}
        failures = [failure[:2000] for failure in reports(self._log(kind), "failed")]
        doing = self.drivers[kind].threads(self._log(kind))
        return "\n".join((f"{kind}: batches done and begun: {batches}; failures: {len(failures)}", *failures[-1:], doing))

    def log(self, kind: str) -> str:
        return self._log(kind).read_text(errors="replace")[-4000:]

    def _log(self, kind: str) -> Path:
        return self.home / f"{kind}.log"
