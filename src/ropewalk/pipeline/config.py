"""The pipeline's settings: `[pipeline]` for a run, `[pipeline.NAME]` for a job, and the command line's overrides."""

import re
from collections.abc import Mapping, Sequence
from datetime import UTC, date, datetime
from difflib import get_close_matches
from pathlib import Path
from tomllib import TOMLDecodeError, loads
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.context import JobOptions
from ropewalk.pipeline.options import RETRIES
from ropewalk.pipeline.registry import Job
from ropewalk.pipeline.supervision import RESTARTS

SECTION = "pipeline"
SPARK = "spark"

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h)?")
_UNITS = {"ms": 0.001, "s": 1.0, None: 1.0, "m": 60.0, "h": 3600.0}


class RunSettings(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The keys of `[pipeline]`, and the flags of the same names. Empty values come from the server's own settings."""

    url: Annotated[str, Meta(description="The server's address.")] = ""
    token: Annotated[str, Meta(description="Bearer key of the journal.")] = ""
    ca_file: Annotated[str, Meta(description="File with the certificates to trust, for a server with a private one.")] = ""
    retries: Annotated[
        int, Meta(description="Retries while the server is unreachable: 8 take 25 s, each further one 10 s.", ge=0)
    ] = RETRIES
    archive_dir: Annotated[str, Meta(description="Directory of the archive.")] = ""
    state_dir: Annotated[str, Meta(description="Directory of checkpoints and tables.")] = ""
    metrics_port: Annotated[int, Meta(description="Port of the Prometheus metrics; 0 takes a free one.")] | None = None
    imports: Annotated[tuple[str, ...], Meta(description="Modules with further jobs.")] = ()
    restarts: Annotated[int, Meta(description="Failures in a row after which a job is given up.", ge=0)] = RESTARTS
    spark: Annotated[dict[str, str], Meta(description="Spark's own settings, by their names.")] = {}


T = TypeVar("T")
Sections = dict[str, dict[str, Any]]


def read_file(path: Path | None) -> tuple[RunSettings, Sections]:
    """The run's settings, and each job's section as it is written. Raises UserMistake."""
    if path is None:
        return RunSettings(), {}
    try:
        tables = loads(path.read_text(encoding="utf-8")).get(SECTION, {})
    except OSError as error:
        raise UserMistake(f"cannot read {path}: {error.strerror}") from None
    except (TOMLDecodeError, UnicodeDecodeError) as error:
        raise UserMistake(f"{path} is not TOML: {error}") from None
    if not isinstance(tables, dict):
        raise UserMistake(f"{path}: {SECTION} is a section and is written [{SECTION}]")
    sections = {name: table for name, table in tables.items() if isinstance(table, dict) and name != SPARK}
    run = {name: value for name, value in tables.items() if name not in sections}
    return _converted(run, RunSettings, f"{path}: [{SECTION}]"), sections


def overridden(settings: RunSettings, flags: Mapping[str, Any]) -> RunSettings:
    """Flags that were given win; lists are joined."""
    given = {name: value for name, value in flags.items() if value not in (None, ())}
    if "imports" in given:
        given["imports"] = (*settings.imports, *given["imports"])
    return msgspec.structs.replace(settings, **given)


def with_assignments(sections: Sections, assignments: Sequence[str]) -> Sections:
    """The sections with the `--set JOB.KEY=VALUE` overrides."""
    merged = {name: dict(table) for name, table in sections.items()}
    for text in assignments:
        name, equals, value = text.partition("=")
        job, dot, key = name.partition(".")
        if not (equals and dot and job and key):
            raise UserMistake(f"--set is written JOB.KEY=VALUE, like rollup.trigger=1m, not {text!r}")
        merged.setdefault(job, {})[key.replace("-", "_")] = value
    return merged


def job_options(job: Job, sections: Sections, name: str = "") -> JobOptions:
    """The section is that of `name`, by default the job's own. Raises UserMistake that names the section and the key."""
    section = f"[{SECTION}.{name or job.name}]"
    table = sections.get(name or job.name, {})
    known = msgspec.structs.fields(job.options)
    for key in table:
        if key not in {field.name for field in known}:
            near = get_close_matches(key, [field.name for field in known], n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has: {', '.join(field.name for field in known)}"
            raise UserMistake(f"{section} has no key {key}; {hint}")
    return _converted(table, job.options, section)


def seconds(text: str) -> float:
    """`100ms`, `10s`, `5m`, `24h`; a bare number is seconds. Raises UserMistake."""
    match = _DURATION.fullmatch(text.strip())
    if not match:
        raise UserMistake(f"a duration is written like 100ms, 10s, 5m or 24h, not {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def moment(text: str) -> datetime:
    """`2026-01-31T12:00:00Z`, or a part of it from the left; without a zone it is UTC. Raises UserMistake."""
    try:
        read = datetime.fromisoformat(text.strip())
    except ValueError:
        raise UserMistake(f"a time is written like 2026-01-31 or 2026-01-31T12:00:00Z, not {text!r}") from None
    return (read if read.tzinfo else read.replace(tzinfo=UTC)).astimezone(UTC)


def day(text: str) -> date:
    """`2026-01-31`. Raises UserMistake."""
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise UserMistake(f"a date is written like 2026-01-31, not {text!r}") from None


def _converted(table: Mapping[str, Any], kind: type[T], where: str) -> T:
    try:
        # Not strict: a flag's text becomes the number that a file would have.
        return msgspec.convert(table, kind, strict=False)
    except (msgspec.ValidationError, UserMistake) as error:  # the latter from an options' own check of its values
        raise UserMistake(f"{where}: {error}") from None
