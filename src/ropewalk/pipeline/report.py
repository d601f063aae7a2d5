"""What an audit found, for people and for programs."""

from collections.abc import Mapping

import msgspec
from msgspec import Struct


class AuditFault(Struct, frozen=True):
    """`kind`: stream, log (journal and archive together), journal, archive, file or difference. `where` and `what` are for
    people."""

    kind: str
    where: str
    what: str


class Part(Struct, frozen=True):
    """How much one side holds."""

    shards: int = 0
    rows: int = 0

    @classmethod
    def of(cls, extents: Mapping[tuple[int, int], tuple[int, int, int, int]]) -> "Part":
        return cls(len({shard for shard, _ in extents}), sum(rows for _, _, rows, _ in extents.values()))


class AuditReport(Struct, frozen=True):
    """`compared` rows lie in both and were held against each other. Of each kind only the first faults are named."""

    streams: int
    messages: int
    journal: Part
    archive: Part
    compared: int
    faults: tuple[AuditFault, ...] = ()

    @property
    def holds(self) -> bool:
        return not self.faults

    @property
    def json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode({"holds": self.holds, **msgspec.structs.asdict(self)})) + b"\n"

    @property
    def text(self) -> str:
        lines = [
            f"journal   {self.journal.rows:>12,} rows in {self.journal.shards} shards",
            f"archive   {self.archive.rows:>12,} rows in {self.archive.shards} shards",
            f"compared  {self.compared:>12,} rows, journal with archive",
            f"streams   {self.streams:>12,} with {self.messages:,} messages",
            *(f"FAULT     {fault.kind}: {fault.where}: {fault.what}" for fault in self.faults),
            "the log holds" if self.holds else "the log does NOT hold",
        ]
        return "\n".join(lines)
