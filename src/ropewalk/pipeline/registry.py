"""The jobs of the pipeline: declared records in one registry, ours and those that users add with `@job`.

A job is a name, a summary, its options and a function. The runner adds triggers, checkpoints and restarts.
"""

from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from msgspec import Struct

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.context import BatchOptions, Context, JobOptions, StreamOptions

if TYPE_CHECKING:
    from pyspark.sql.streaming.readwriter import DataStreamWriter

BUILT_IN = ("archive", "compact", "vacuum", "rollup", "sessions", "presence", "derive", "replay", "audit")


O = TypeVar("O", bound=JobOptions)  # noqa: E741  # the usual letter, for options
Built = TypeVar("Built", "DataStreamWriter", int)
Body = Callable[[Context, Any], Any]


class Job(Struct, frozen=True):
    """`body` gives a query that is not started yet, or, of a batch job, does the work and returns an exit code."""

    name: str
    summary: str
    options: type[JobOptions]
    body: Body
    offline: bool = False  # needs neither the server nor Spark

    @property
    def is_batch(self) -> bool:
        return issubclass(self.options, BatchOptions)


_jobs: dict[str, Job] = {}


def job(
    name: str,
    summary: str = "",
    options: type[O] = StreamOptions,  # type: ignore[assignment]  # mypy wants a default that fits every O
    offline: bool = False,
) -> Callable[[Callable[[Context, O], Built]], Callable[[Context, O], Built]]:
    """Declare a job. The function gets a Context and the options, whose values come from `[pipeline.NAME]`.

    With StreamOptions (or a subclass) it returns `df.writeStream…`, not started; with BatchOptions an exit code.
    """

    def declare(body: Callable[[Context, O], Built]) -> Callable[[Context, O], Built]:
        if name in _jobs and _jobs[name].body is not body:
            raise UserMistake(f"there is a job {name!r} already, from {_jobs[name].body.__module__}")
        _jobs[name] = Job(name, summary or (body.__doc__ or "").partition("\n")[0].strip(), options, body, offline)
        return body

    return declare


def load_jobs(modules: Sequence[str] = ()) -> dict[str, Job]:
    """Our own jobs, and those of `modules`, by name. Raises UserMistake for a module that cannot be imported."""
    for name in BUILT_IN:
        import_module(f"ropewalk.pipeline.jobs.{name}")
    for module in modules:
        try:
            import_module(module)
        except ImportError as error:
            raise UserMistake(
                f"cannot import {module!r} ({error}): is it installed, in this directory, or in one of PYTHONPATH?"
            ) from error
    return dict(_jobs)


def find_job(name: str, jobs: dict[str, Job]) -> Job:
    """`derive:errors` is the job `derive` under a name of its own, with its own section, checkpoint and table."""
    kind = name.partition(":")[0]
    if kind in jobs:
        return jobs[kind]
    near = get_close_matches(name, jobs, n=1)
    hint = f"did you mean {near[0]}?" if near else f"known are: {', '.join(jobs)}"
    raise UserMistake(f"unknown job {name!r}; {hint}")
