"""The board: what runs from a state directory, told in small files, so that `status` and `stop` work from another terminal.

Who runs a job holds a lock on its file; a lock ends with its process, so that a crash leaves nobody running by name only.
"""

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.progress import QueryProgress
from ropewalk.pipeline.supervision import ENDED, Condition

LOST = "lost"
"""The condition of a job whose process ended without a word."""


class Note(Struct, frozen=True):
    """What is known of one job: the process that runs it (0: none any more), and how it is doing."""

    job: str
    pid: int
    condition: str
    updated: float
    restarts: int = 0
    error: str = ""
    progress: QueryProgress = QueryProgress()
    silent: float = 0.0


class Board:
    def __init__(self, state_dir: Path) -> None:
        self._dir = state_dir / "running"

    @contextmanager
    def claimed(self, job: str) -> Iterator[None]:
        """Hold the job's lock. Raises UserMistake if somebody else has it: two drivers on one checkpoint spoil it."""
        self._dir.mkdir(parents=True, exist_ok=True)
        with self._file(job, "lock").open("a") as lock:
            if not _locked(lock.fileno()):
                raise UserMistake(f"{job} runs already{self._who(job)}; `ropewalk pipeline stop {job}` stops it")
            self._file(job, "stop").unlink(missing_ok=True)
            yield

    def write(self, note: Note) -> None:
        """Whole or not at all, for readers may come at any time."""
        path = self._file(note.job, "json")
        beside = path.with_suffix(f".{note.pid}")
        beside.write_bytes(msgspec.json.encode(note))
        beside.replace(path)

    def notes(self) -> list[Note]:
        return [note for path in sorted(self._dir.glob("*.json")) if (note := self._note(path.stem)) is not None]

    def ask_to_stop(self, job: str) -> None:
        self._file(job, "stop").touch()

    def asked_to_stop(self, job: str) -> bool:
        return self._file(job, "stop").exists()

    def stopping(self, job: str) -> bool:
        """Asked to stop, and not there yet. Its process may go on with other jobs, and holds the lock until it ends."""
        note = self._note(job)
        return self.runs(job) and note is not None and Condition(note.condition) not in ENDED

    def runs(self, job: str) -> bool:
        try:
            with self._file(job, "lock").open() as lock:
                return not _locked(lock.fileno())
        except FileNotFoundError:
            return False

    def _note(self, job: str) -> Note | None:
        try:
            note = msgspec.json.decode(self._file(job, "json").read_bytes(), type=Note)
        except (FileNotFoundError, msgspec.DecodeError):
            return None
        if self.runs(job):
            return note
        if Condition(note.condition) in ENDED:
            return msgspec.structs.replace(note, pid=0)
        return msgspec.structs.replace(note, condition=LOST, pid=0)  # the number may be another process's by now

    def _who(self, job: str) -> str:
        note = self._note(job)
        return f" in process {note.pid}" if note else ""

    def _file(self, job: str, kind: str) -> Path:
        return self._dir / f"{job}.{kind}"


def _locked(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
