"""Makes a consistent copy of a journal's files while a server may write to them.

Invariant: everything committed before the copy began is in it, and no group is in it partially. A restored copy is marked as
incomplete, so that every stream begins a new epoch and no position is given twice.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import BinaryIO

from msgspec import Struct
from msgspec.structs import replace

from ropewalk.adapters.journals.arrow.inspection import (
    Chain,
    Progress,
    list_chains,
    missing_head,
    read_committed_ends,
    require_manifest,
    still_recorded,
)
from ropewalk.adapters.journals.arrow.records import CommittedEnds, Disk, GenerationRecord, Manifest, save
from ropewalk.adapters.journals.arrow.segment import Hole, index_path, load_index, scan, state_path
from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.model.journal import GENERATION_BITS

ATTEMPTS = 100
"""Retries when retention removes files, or a shard begins a segment, during the copy."""

PIECE = 1024 * 1024


class Copied(Struct, frozen=True):
    """The contents of the copy; `hole_rows` are missing in the journal itself."""

    shards: int
    rows: int
    hole_rows: int
    bytes: int


class View(Struct, frozen=True):
    """A journal at one moment: its manifest, its committed ends, and its files by shard and generation."""

    manifest: Manifest
    committed: CommittedEnds
    chains: list[list[Chain]]

    def closed(self) -> Iterator[tuple[Chain, int]]:
        """Files that no longer grow, as chain and number."""
        for chains in self.chains:
            for chain in chains:
                yield from ((chain, number) for number in range(len(chain.paths) - chain.in_use))

    def growing(self) -> dict[int, Path]:
        """The files that grow, by shard."""
        return {chains[-1].shard: chains[-1].paths[-1] for chains in self.chains if chains[-1].paths}


def view(directory: Path) -> View:
    for _ in range(ATTEMPTS):
        manifest = require_manifest(directory)
        if manifest is None:
            raise UserMistake(f"no journal in {directory.parent}")
        committed = read_committed_ends(directory, manifest)
        with suppress(FileNotFoundError):
            chains = [list_chains(directory, manifest, committed, shard) for shard in range(manifest.shards)]
            if still_recorded(directory, manifest):
                return View(manifest, committed, chains)
    raise Unavailable(f"the files of {directory} change faster than they can be read")


def as_committed(seen: View) -> View | None:
    """Leave out files begun after the commit log was read. None if retention removed all others meanwhile."""
    chains = []
    for of_shard in seen.chains:
        *former, current = of_shard
        end = seen.committed.ends.get(current.shard, 0)
        begun_before = [path for path in current.paths if int(path.stem) <= end]
        if end >> GENERATION_BITS == current.record.number and len(begun_before) < len(current.paths):
            if not begun_before:
                return None
            current = replace(current, paths=begun_before, promised=max(current.record.end, end))
        chains.append([*former, current])
    return View(seen.manifest, seen.committed, chains)


def _open(path: Path) -> BinaryIO | None:
    try:
        return path.open("rb")
    except FileNotFoundError:
        return None


class JournalCopy:
    """One copy of the journal in `source`, made in `target`, which must not exist."""

    def __init__(self, source: Path, target: Path, progress: Progress, disk: Disk | None = None) -> None:
        self._source = source
        self._target = target
        self._progress = progress
        self._disk = disk or Disk()
        self._copied: dict[Path, Path] = {}
        self._bytes = 0

    def consumers(self) -> None:
        """Copied first, so that their marks are within the rows copied later."""
        (self._target / "consumers").mkdir(parents=True)
        for path in sorted((self._source / "consumers").glob("*.json")):
            try:
                shutil.copy(path, self._target / "consumers" / path.name)
            except FileNotFoundError:  # deleted meanwhile
                continue

    def rows(self) -> Copied:
        """Raises UserMistake without a journal."""
        self._copy_closed(view(self._source))
        for _ in range(ATTEMPTS):
            seen = self._copy_growing()
            if seen is not None:
                return self._finish(seen)
        raise Unavailable(f"the files of {self._source} change faster than they can be copied")

    def _copy_closed(self, seen: View) -> bool:
        """False if a file was removed meanwhile."""
        total = sum(path.stat().st_size for chains in seen.chains for chain in chains for path in chain.paths if path.exists())
        for chain, number in seen.closed():
            path = chain.paths[number]
            try:
                if path not in self._copied:
                    with path.open("rb") as file:
                        self._copy(path, file.fileno())
            except FileNotFoundError:
                return False
            self._progress(self._bytes, max(total, self._bytes))
        return True

    def _copy_growing(self) -> View | None:
        """Copy the growing files, at one moment for all shards. None to retry: a file was removed, or a shard began more than
        one file meanwhile."""
        with ExitStack() as opened:
            growing = view(self._source).growing().values()
            files = {path: opened.enter_context(file) for path in growing if (file := _open(path))}
            listed = view(self._source)
            seen = as_committed(listed)
            if seen is None:
                return None
            # A file is rewritten once another follows it. Only the original can be truncated between groups.
            for shard, path in seen.growing().items():
                if path in files:
                    continue
                file = _open(path)
                if file is None:
                    return None
                files[path] = opened.enter_context(file)
                if seen.chains[shard] != listed.chains[shard] or self._has_begun_another(listed.chains[shard]):
                    return None
            if not self._copy_closed(seen) or not self._copy_beside(seen):
                return None
            for shard, path in seen.growing().items():
                self._copy(path, files[path].fileno())
                self._cut(seen.chains[shard][-1])
            return seen

    def _has_begun_another(self, chains: list[Chain]) -> bool:
        """Whether the shard has files that were not listed."""
        listed = {path for chain in chains for path in (*chain.paths, *chain.left_over, *chain.strays)}
        return not listed.issuperset((self._source / f"shard={chains[-1].shard:02}").glob("*.arrow"))

    def _copy(self, path: Path, fd: int) -> None:
        copy = self._target / path.parent.name / path.name
        copy.parent.mkdir(exist_ok=True)
        with copy.open("wb") as file:
            at = 0
            while piece := os.pread(fd, PIECE, at):
                file.write(piece)
                at += len(piece)
        self._bytes += at
        self._copied[path] = copy

    def _copy_beside(self, seen: View) -> bool:
        """Copy states and indexes. False if retention removed a segment before its state was copied."""
        for chain in (chain for chains in seen.chains for chain in chains):
            for path in chain.paths:
                copy = self._target / path.parent.name / path.name
                for beside in (state_path(path), index_path(path)):
                    with suppress(FileNotFoundError):
                        shutil.copy(beside, copy.parent)
                if not path.exists():
                    return False
        return True

    def _cut(self, chain: Chain) -> None:
        """Truncate rows committed after the moment of the copy."""
        copy = self._copied[chain.paths[-1]]
        segment, _ = scan(copy, chain.shard, int(copy.stem), chain.promised, ended=True)
        if segment.firsts and segment.firsts[-1] == segment.end:
            os.truncate(copy, segment.offsets[-1])

    # --- once all files are copied ---

    def _finish(self, seen: View) -> Copied:
        generations = [[_record(chain, self._holes(chain)) for chain in chains] for chains in seen.chains]
        wanted = {path for chains in seen.chains for chain in chains for path in chain.paths}
        for path in self._copied.keys() - wanted:  # removed by retention after it was copied
            for each in (self._copied[path], state_path(self._copied[path]), index_path(self._copied[path])):
                each.unlink(missing_ok=True)
        for shard in range(seen.manifest.shards):
            (self._target / f"shard={shard:02}").mkdir(exist_ok=True)
        for path in self._target.rglob("*"):
            self._disk.sync_file(path)
        manifest = seen.manifest
        record = Manifest(
            1,
            manifest.shards,
            manifest.durability,
            manifest.boot_id,
            clean=True,
            group=seen.committed.group,
            generations=generations,
            archived=manifest.archived,
            incomplete=True,
        )
        save(self._target, record, self._disk)
        holes = sum(end - first for own in generations for generation in own for first, end in generation.holes)
        rows = sum(generation.end - generation.first for own in generations for generation in own) - holes
        return Copied(manifest.shards, rows, holes, sum(self._copied[path].stat().st_size for path in wanted))

    def _holes(self, chain: Chain) -> list[Hole]:
        """Every byte of the copy is read back and checked."""
        found = missing_head(chain)
        for number, path in enumerate(chain.paths):
            copy, first, limit = self._copied[path], int(path.stem), chain.limit(number)[0]
            found += scan(copy, chain.shard, first, limit, ended=True)[0].holes
            if load_index(copy, chain.shard, first) is None:
                index_path(copy).unlink(missing_ok=True)  # it is of another version of the file
        return found


def _record(chain: Chain, holes: list[Hole]) -> GenerationRecord:
    first = chain.record.first
    return GenerationRecord(chain.record.epoch, chain.record.number, first, max(first, chain.promised), holes)
