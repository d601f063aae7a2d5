"""`ropewalk pipeline`: lists the Spark jobs on the journal, runs them and displays their progress.

The server's address, token and directories default to the server's own settings.
"""

import argparse
import os
import sys
import time
import types
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from ropewalk.app.keys import derive_keys
from ropewalk.app.settings import Settings, load
from ropewalk.app.settings.load import CONFIG_FLAG, find_file
from ropewalk.cli.reaching import NOT_THERE, listening_at
from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.model.extras import install_command
from ropewalk.pipeline.config import SECTION, RunSettings, Sections, job_options, overridden, read_file, with_assignments
from ropewalk.pipeline.context import BatchOptions, StreamOptions
from ropewalk.pipeline.registry import Job, find_job, load_jobs

if TYPE_CHECKING:
    from ropewalk.pipeline.context import Context, Place
    from ropewalk.pipeline.runner import RunPlan


SUMMARY = "run jobs on the journal with Spark: archive, rollup, audit …"

STATE_DIR = ".ropewalk"
SHARED = ("url", "token", "ca_file", "retries", "archive_dir", "state_dir", "metrics_port", "imports", "restarts")


def run(argv: list[str]) -> int:
    wanted = _parser().parse_args([_underscored(word) for word in argv])
    return _list(wanted) if wanted.action == "list" else _run(wanted)


# --- the words -------------------------------------------------------------------------------------------------------


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk pipeline", description=SUMMARY, allow_abbrev=False)
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    listing = actions.add_parser("list", help="the jobs there are", allow_abbrev=False)
    listing.add_argument("--format", choices=("table", "markdown"), default="table")
    running = actions.add_parser("run", help="run jobs until they are stopped", allow_abbrev=False)
    running.add_argument("jobs", metavar="NAME", nargs="+", help="jobs; `derive:errors` is derive under a name of its own")
    running.add_argument("--available_now", action="store_true", help="process the existing rows, job after job, then exit")
    running.add_argument("--set", metavar="JOB.KEY=VALUE", action="append", default=[], help="an option of a job, for this run")
    running.add_argument("--url", help="address of the server (default: from its settings)")
    running.add_argument("--token", help="bearer key of the journal (default: ROPEWALK_JOURNAL_TOKEN, or from ROPEWALK_SECRET)")
    running.add_argument("--ca_file", help="certificates to trust, where the server has a private one")
    running.add_argument("--retries", type=int, help="retries while the server is unreachable (default 8: 25 s)")
    running.add_argument("--archive_dir", help="the archive's directory (default: the server's setting, or below --state_dir)")
    running.add_argument("--metrics_port", type=int, help="serve Prometheus metrics there; 0 takes a free port")
    running.add_argument("--restarts", type=int, help="failures in a row after which a job is given up (default 5)")
    for each in (listing, running):
        each.add_argument("--config_path", help="the settings file (default: ropewalk.toml, where there is one)")
        each.add_argument("--import", dest="imports", metavar="MODULE", action="append", default=[], help="where jobs are")
        each.add_argument("--state_dir", help=f"checkpoints and tables (default: in the data_dir, or {STATE_DIR})")
    return parser


def _underscored(word: str) -> str:
    name, equals, value = word.partition("=")
    return name[:2] + name[2:].replace("-", "_") + equals + value if name.startswith("--") else word


# --- the settings ----------------------------------------------------------------------------------------------------


def _settings(wanted: argparse.Namespace) -> tuple[RunSettings, Sections, Settings]:
    flag = [] if wanted.config_path is None else [f"--{CONFIG_FLAG}", wanted.config_path]
    given = {} if wanted.config_path is None else {CONFIG_FLAG: wanted.config_path}
    settings, sections = read_file(find_file(given, os.environ, Path()))
    flags = {name: getattr(wanted, name) for name in SHARED if hasattr(wanted, name)}
    return overridden(settings, flags | {"imports": tuple(wanted.imports)}), sections, load(flag, os.environ)


def _state_dir(settings: RunSettings, server: Settings) -> Path:
    data_dir = server.journal.data_dir
    return Path(settings.state_dir or (f"{data_dir}/pipeline" if data_dir else STATE_DIR)).absolute()


def _place(settings: RunSettings, server: Settings, offline: bool) -> "Place":
    from ropewalk.pipeline.context import Place
    from ropewalk.pipeline.options import local_path

    state_dir = _state_dir(settings, server)
    archive_dir = settings.archive_dir or server.archive.archive_dir or str(state_dir / "archive")
    return Place(
        (settings.url or ("" if offline else listening_at(server))).rstrip("/"),
        settings.token or derive_keys(server).journal or "",
        local_path(archive_dir),
        state_dir,
        settings.ca_file,
        settings.retries,
    )


# --- the actions -----------------------------------------------------------------------------------------------------


def _list(wanted: argparse.Namespace) -> int:
    _require_spark()
    settings, _, _ = _settings(wanted)
    jobs = _jobs(settings)
    print(as_markdown(jobs) if wanted.format == "markdown" else as_table(jobs), end="")
    return 0


def _run(wanted: argparse.Namespace) -> int:
    _require_spark()
    from ropewalk.pipeline.context import Context, RunSession
    from ropewalk.pipeline.display import Display
    from ropewalk.pipeline.runner import PipelineRunner
    from ropewalk.pipeline.session import spark_session

    settings, written, server = _settings(wanted)
    plans = _plans(wanted.jobs, settings, with_assignments(written, wanted.set))
    place = _place(settings, server, all(plan.job.offline for plan in plans))
    display = Display(time.monotonic)
    context = Context(place, RunSession(lambda: spark_session("ropewalk", **settings.spark)), display.print_line)
    _require_journal(context, plans)
    runner = PipelineRunner(context, display, wanted.available_now, settings.restarts)
    return runner.run(plans, settings.metrics_port)


def _plans(names: Sequence[str], settings: RunSettings, sections: Sections) -> "list[RunPlan]":
    from ropewalk.pipeline.runner import RunPlan

    jobs = _jobs(settings)
    for section in sections:
        find_job(section, jobs)  # a misspelt section must not be ignored
    found = {name: find_job(name, jobs) for name in names}
    return [RunPlan(name, job, job_options(job, sections, name)) for name, job in found.items()]


def _jobs(settings: RunSettings) -> dict[str, Job]:
    if settings.imports:
        _put_on_path(os.getcwd())
    return load_jobs(settings.imports)


def _put_on_path(directory: str) -> None:
    """As `python -m` does. Spark's workers, which run functions of these modules, take the path from the variable."""
    if sys.path[:1] != [directory]:
        sys.path.insert(0, directory)
    known = os.environ.get("PYTHONPATH", "")
    if directory not in known.split(os.pathsep):
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (directory, known)))


# --- prerequisites ---------------------------------------------------------------------------------------------------


def _require_spark() -> None:
    if absent := [name for name in ("pyspark", "pyarrow", "deltalake", "pandas") if find_spec(name) is None]:
        raise UserMistake(f"the pipeline needs {', '.join(absent)}: {install_command('spark')}")


def _require_journal(context: "Context", plans: "Sequence[RunPlan]") -> None:
    """Check the server before a JVM is started. Raises UserMistake or Unavailable."""
    from ropewalk.pipeline.journal_client import JournalClient, JournalRefused
    from ropewalk.pipeline.jvm import find_java

    if all(plan.job.offline for plan in plans):
        return
    place = context.place
    client = JournalClient(msgspec.structs.replace(place.address, retries=0))
    find_java()
    try:
        client.spans()
    except JournalRefused as refused:
        raise UserMistake(f"{place.url} has no journal ({refused}): start the server with --data_dir") from refused
    except Unavailable as error:
        raise Unavailable(f"{error}; {NOT_THERE}") from error


HEAD = """\
# Jobs of the pipeline

<!-- Drawn from the code by `ropewalk pipeline list --format markdown`. Change it there. -->

`ropewalk pipeline run NAME…` runs them; [Pipelines](../how-to/pipelines.md) shows how. Options are written in the settings file
under `[pipeline.NAME]`, or on the command line as `--set NAME.KEY=VALUE`. Durations are written `100ms`, `10s`, `5m`, `24h`.
"""


def as_table(jobs: Mapping[str, Job]) -> str:
    return "".join(f"{job.name:<12}{'batch' if job.is_batch else 'stream':<9}{job.summary}\n" for job in jobs.values())


def as_markdown(jobs: Mapping[str, Job]) -> str:
    parts = [
        HEAD,
        f"\n## `[{SECTION}]`\n\nWhat holds for a whole run; the flags of the same names win.\n\n{_options(RunSettings)}",
        f"\n## Every job that is a stream\n\nIt goes on until it is stopped.\n\n{_options(StreamOptions)}",
        f"\n## Every job that is a batch\n\nIt comes to an end.\n\n{_options(BatchOptions)}",
    ]
    for job in jobs.values():
        parts.append(f"\n## `{job.name}`\n\nA {'batch' if job.is_batch else 'stream'}: {job.summary}.\n")
        shared = BatchOptions if job.is_batch else StreamOptions
        if own := _options(job.options, shared):
            parts.append(f"\n{own}")
    return "".join(parts)


def _options(record: type[msgspec.Struct], without: type[msgspec.Struct] | None = None) -> str:
    """A table of the fields, except those that equal a field of `without`."""
    known = {} if without is None else _meanings(without)
    own = _meanings(record)
    lines = [
        f"| `{name}` | {_shown(default)} | {text} |\n"
        for name, (default, text) in own.items()
        if name not in known or known[name] != (default, text)
    ]
    return f"| option | default | meaning |\n|---|---|---|\n{''.join(lines)}" if lines else ""


def _meanings(record: type[msgspec.Struct]) -> dict[str, tuple[object, str]]:
    """By field, its default and its description."""
    texts = _texts(record)
    return {field.name: (field.default, texts.get(field.name, "")) for field in msgspec.structs.fields(record)}


def _texts(record: type[msgspec.Struct]) -> dict[str, str]:
    """Descriptions by field. A subclass that only changes a default keeps the description it inherits."""
    texts: dict[str, str] = {}
    for each in reversed(record.__mro__):
        if issubclass(each, msgspec.Struct):
            hints = get_type_hints(each, include_extras=True)
            texts |= {name: text for name, hint in hints.items() if (text := _description(hint))}
    return texts


def _description(hint: Any) -> str:
    if get_origin(hint) in (Union, types.UnionType):
        return next(filter(None, map(_description, get_args(hint))), "")
    if get_origin(hint) is Annotated:
        return next((meta.description or "" for meta in hint.__metadata__ if isinstance(meta, msgspec.Meta)), "")
    return ""


def _shown(default: object) -> str:
    match default:
        case bool():
            return f"`{str(default).lower()}`"
        case "" | () | None | msgspec.NODEFAULT:
            return ""
        case _:
            return f"`{default}`"
