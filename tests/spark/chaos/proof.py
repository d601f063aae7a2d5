"""The proof, read from files without Spark and without the server: journal and archive row by row, and where every row went."""

import json
from collections import Counter, defaultdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import DeltaTable

from ropewalk.client import Message
from tests.spark.chaos.traffic import DELIVERIES, INPUTS

Position = tuple[str, str, int]
"""Stream, epoch, offset."""


class Proof:
    """All rows after the last write. `log` is journal and archive together, by shard."""

    def __init__(self, home: Path) -> None:
        self.journal = {int(shard.name.removeprefix("shard=")): _segments(shard) for shard in _shards(home / "data")}
        self.archive = _archive(home / "archive")
        self.log = {shard: self._joined(shard) for shard in sorted(self.journal.keys() | self.archive.keys())}
        self.messages: dict[Position, Any] = {}
        for table in self.log.values():
            for row in table.select(["event", "stream", "epoch", "offset", "value"]).to_pylist():
                if row["event"] == "publish":
                    position = (row["stream"], row["epoch"], row["offset"])
                    assert position not in self.messages, f"{position} is in the log twice"
                    self.messages[position] = json.loads(row["value"])

    def _joined(self, shard: int) -> pa.Table:
        """Every position once; where both have one, the rows are the same."""
        journal = self.journal[shard]
        archived = self._archived(shard)
        begin = journal["position"][0].as_py() if len(journal) else len(archived)
        below, common = archived.filter(pc.field("position") < begin), archived.filter(pc.field("position") >= begin)
        assert common.equals(journal.slice(0, len(common))), f"shard {shard}: other rows in the archive"
        joined = pa.concat_tables([below, journal]).combine_chunks()
        assert joined["position"].to_pylist() == list(range(len(joined))), f"shard {shard} is not dense"
        return joined

    def _archived(self, shard: int) -> pa.Table:
        schema = self.journal[shard].schema
        return self.archive.get(shard, schema.empty_table()).select(schema.names).cast(schema).combine_chunks()

    def tiers(self) -> dict[str, int]:
        """Rows that only the archive has, that both have, and that only the journal has."""
        archived = {shard: len(self._archived(shard)) for shard in self.log}
        trimmed = {shard: len(rows) - len(self.journal[shard]) for shard, rows in self.log.items()}
        return {
            "rows in the archive only": sum(trimmed.values()),
            "rows in both": sum(archived[shard] - trimmed[shard] for shard in self.log),
            "rows in the journal only": sum(len(rows) - archived[shard] for shard, rows in self.log.items()),
        }

    def begins_with(self, read: pa.Table) -> int:
        """A reader's rows, of the journal's columns and the shard as `partition`, are those of the log up to where the reader
        was, in every column. How many."""
        for shard, rows in self.log.items():
            own = read.filter(pc.field("partition") == shard).sort_by("position").select(rows.schema.names)
            same = own.cast(rows.schema).combine_chunks().equals(rows.slice(0, len(own)).combine_chunks())
            assert same, f"shard {shard} was read otherwise"
        return len(read)

    @property
    def rows(self) -> int:
        return sum(map(len, self.log.values()))

    def archive_equals_journal(self) -> int:
        """Row for row, in every column. Returns how many rows."""
        for shard, journal in self.journal.items():
            archived = self.archive.get(shard, journal.schema.empty_table()).select(journal.schema.names)
            assert journal["position"].to_pylist() == list(range(len(journal))), f"shard {shard} of the journal is not dense"
            assert archived["position"].to_pylist() == journal["position"].to_pylist(), f"shard {shard}: other positions"
            assert archived.cast(journal.schema).equals(journal), f"shard {shard}: other rows"
        assert self.archive.keys() <= self.journal.keys()
        return sum(map(len, self.journal.values()))

    def streams_are_dense(self) -> None:
        """One epoch each: nothing of what happened may cost a stream its epoch."""
        lives: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
        for stream, epoch, offset in self.messages:
            lives[stream][epoch].append(offset)
        for stream, epochs in lives.items():
            assert len(epochs) == 1, f"{stream} has the epochs {list(epochs)}"
            for offsets in epochs.values():
                assert sorted(offsets) == list(range(1, len(offsets) + 1)), f"{stream} is not dense"

    def published_once(self, published: dict[Position, int]) -> int:
        """Published messages are in the journal once, at the positions of their receipts. Returns their number."""
        found = {position: value for position, value in self.messages.items() if position[0] in INPUTS}
        assert found == published
        assert len(set(found.values())) == len(found)
        return len(found)

    def delivered_once(self) -> dict[str, int]:
        """Every row that a sink was given is in its stream once; without a shuffle also in order. How many, by sink."""
        given = {position: value for position, value in self.messages.items() if position[0] in INPUTS}
        return {delivery: self._delivered(delivery, given) for delivery in DELIVERIES}

    def _delivered(self, delivery: str, given: dict[Position, Any]) -> int:
        outputs: dict[str, list[tuple[int, Position]]] = defaultdict(list)
        for (stream, _, offset), message in self.messages.items():
            if stream.startswith(f"out/{delivery}/"):
                source = (message["stream"], message["epoch"], message["offset"])
                assert stream.removeprefix(f"out/{delivery}/") == source[0].removeprefix("in/")
                assert json.loads(message["value"]) == given[source]
                outputs[stream].append((offset, source))
        times = Counter(source for rows in outputs.values() for _, source in rows)
        assert times == Counter(given.keys()), f"{delivery}: {_differences(times, given)}"
        if delivery != "transactional":
            for stream, rows in outputs.items():
                sources = [source[2] for _, source in sorted(rows)]
                assert sources == sorted(sources), f"{stream} has lost its order"
        return len(times)

    def seen_once(self, seen: dict[str, list[Message]]) -> int:
        """A subscriber's messages, in which the reading has checked the order already, are those of the journal."""
        got = {(name, message.epoch, message.offset): message.data for name, messages in seen.items() for message in messages}
        assert got == self.messages
        return len(got)


def _differences(times: Counter[Position], given: dict[Position, Any]) -> str:
    missing = [position for position in given if position not in times]
    doubled = [position for position, count in times.items() if count > 1]
    return f"{len(missing)} missing {missing[:5]}, {len(doubled)} more than once {doubled[:5]}"


def _shards(data: Path) -> list[Path]:
    return sorted((data / "journal").glob("shard=*"))


def _segments(shard: Path) -> pa.Table:
    """A shard's segments as any reader of Arrow takes them."""
    tables = []
    for segment in sorted(shard.glob("*.arrow")):
        with pa.OSFile(str(segment)) as file, pa.ipc.open_stream(file) as stream:
            tables.append(stream.read_all())
    return pa.concat_tables(tables).combine_chunks()


def _archive(root: Path) -> dict[int, pa.Table]:
    """The files that the table's log names, by shard, in order of position."""
    actions = pa.table(DeltaTable(str(root)).get_add_actions(flatten=True))
    parts: dict[int, list[pa.Table]] = defaultdict(list)
    for path, shard in zip(actions["path"].to_pylist(), actions["partition.shard"].to_pylist(), strict=True):
        parts[shard].append(pq.ParquetFile(root / path).read())
    return {shard: pa.concat_tables(tables).sort_by("position").combine_chunks() for shard, tables in parts.items()}
