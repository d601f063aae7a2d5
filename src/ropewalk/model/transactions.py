"""Transactions: an application stages a batch piece by piece and then commits it once.

The batches of an application have rising numbers. A piece is one numbered body of one attempt at one part of a batch.
"""

from msgspec import Struct


class StagedPiece(Struct, frozen=True, order=True, gc=False):
    """One staged body, in its checked form of `size` bytes and this checksum. Pieces sort into the order of publishing."""

    part: int
    attempt: int
    seq: int
    size: int
    crc: int


class Decision(Struct, frozen=True):
    """The pieces of a batch, in the order of publishing. Once it is durable, the batch cannot change."""

    batch: int
    pieces: tuple[StagedPiece, ...]


class AppRecord(Struct, frozen=True):
    """The state of one application: its last finished batch, an unfinished decision, and staged pieces by batch."""

    app: str
    last: int | None = None
    decided: Decision | None = None
    staged: dict[int, list[StagedPiece]] = {}


class StagingLimits(Struct, frozen=True):
    """Limits of staged rows. Sizes are bytes. A batch without activity for `idle_timeout` seconds is discarded for others."""

    max_bytes: int = 1024 * 1024 * 1024
    max_app_bytes: int = 512 * 1024 * 1024
    max_open_batches: int = 4
    max_apps: int = 100_000
    idle_timeout: float = 3600.0


class Staged(Struct, frozen=True):
    """`duplicate`: the batch is decided already, and nothing was staged."""

    rows: int
    duplicate: bool = False


class Committed(Struct, frozen=True):
    """`published` rows got their position in this call, `skipped` ones in an earlier one. `last` is the last finished batch."""

    published: int
    skipped: int
    duplicate: bool
    last: int


class Produced(Struct, frozen=True):
    """The result for rows that their producer numbered."""

    published: int
    skipped: int
