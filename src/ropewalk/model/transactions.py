"""Transactions: an application stages a batch piece by piece and then commits it once.

The batches of an application have rising numbers. A piece is what one attempt at one part of a batch staged under one
number.
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
    """Which pieces make up a batch, in the order of publishing. Once it is durable, nothing else can become of the batch."""

    batch: int
    pieces: tuple[StagedPiece, ...]


class AppRecord(Struct, frozen=True):
    """What is kept of one application: its last finished batch, a decision to finish, and what waits by batch."""

    app: str
    last: int | None = None
    decided: Decision | None = None
    staged: dict[int, list[StagedPiece]] = {}


class StagingLimits(Struct, frozen=True):
    """How much may wait. Sizes are bytes; a batch untouched for `idle_timeout` seconds gives way when there is no room."""

    max_bytes: int = 1024 * 1024 * 1024
    max_app_bytes: int = 512 * 1024 * 1024
    max_open_batches: int = 4
    max_apps: int = 100_000
    idle_timeout: float = 3600.0


class Staged(Struct, frozen=True):
    """`duplicate`: the batch is decided already, so that nothing was kept."""

    rows: int
    duplicate: bool = False


class Committed(Struct, frozen=True):
    """`published` rows got their position by this call, `skipped` ones had it before. `last` is the last finished batch."""

    published: int
    skipped: int
    duplicate: bool
    last: int


class Produced(Struct, frozen=True):
    """The same for rows that a producer numbered itself."""

    published: int
    skipped: int
