"""The paths of the one port: each is a path, and no two endpoints want the same."""

import re

from ropewalk.app.settings.sections import Settings
from ropewalk.model.errors import UserMistake

# What a browser and a proxy pass on as it is written. Anything else would arrive in another form than the one set here.
_PATH = re.compile(r"/[A-Za-z0-9._~!$&'()*+,;=:@/-]*", re.ASCII)


def require_distinct_paths(settings: Settings) -> None:
    """Raises UserMistake."""
    if not settings.server.path:
        raise UserMistake("--path wants at least one path, such as /cable")
    chosen = chosen_paths(settings)
    for name, path in chosen:
        if not _PATH.fullmatch(path):
            raise UserMistake(f"--{name} wants a path that begins with / and has nothing of a query in it, not {path!r}")
    for number, (name, path) in enumerate(chosen):
        for other, taken in chosen[:number]:
            if path == taken:
                raise UserMistake(f"--{other} and --{name} are the same path, {path}")
        for owner, root in taken_roots(settings):
            if path == root or path.startswith(f"{root}/"):
                raise UserMistake(f"--{name} is {path}, where {owner} is already")


def chosen_paths(settings: Settings) -> list[tuple[str, str]]:
    """Settings that are paths, with the name of each."""
    metrics = [("metrics_http", settings.operations.metrics_http)] if settings.operations.metrics_http else []
    sse = [("sse_path", settings.sse.sse_path)] if settings.sse.sse else []
    return [
        *(("path", path) for path in settings.server.path),
        ("health_path", settings.server.health_path),
        *(("health_path", f"{settings.server.health_path.rstrip('/')}/{probe}") for probe in ("live", "ready")),
        ("http_broadcast_path", settings.broadcast.http_broadcast_path),
        ("api_path", settings.api.api_path),
        *metrics,
        *sse,
    ]


def taken_roots(settings: Settings) -> list[tuple[str, str]]:
    """Paths that endpoints have without being asked, they and all below them, with the owner of each."""
    api = settings.api.api_path.rstrip("/")
    roots = [("the REST API", f"{api}/{name}") for name in ("publish", "streams", "presence")]
    roots += [("the journal", "/journal")] if settings.journal.data_dir else []
    return [*roots, ("the demo page", "/demo")] if settings.server.demo else roots
