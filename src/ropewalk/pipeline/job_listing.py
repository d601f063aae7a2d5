"""The jobs and their options as text: for the terminal, and as the reference page. Drawn from the records themselves."""

import types
from collections.abc import Mapping
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

import msgspec

from ropewalk.pipeline.config import SECTION, RunSettings
from ropewalk.pipeline.context import BatchOptions, StreamOptions
from ropewalk.pipeline.registry import Job

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
    """A table of the fields, without those that are the same in `without`."""
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
