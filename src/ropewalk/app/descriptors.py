"""Open files: raises the process's limit as far as it may, and says how many connections fit under it."""

import contextlib
import logging
import os
import resource

from ropewalk.adapters.endpoints.admission import HTTP_RESERVE, MOST_UNKNOWN
from ropewalk.app.settings import Settings

logger = logging.getLogger("ropewalk.server")

OWN_FILES = 256
"""Files beside connections: journal segments and their readers, staging, the application, modules that are loaded late."""

FEWEST = 16


def room_for_connections(settings: Settings) -> int:
    """How many connections of every kind the limit of open files allows. Called once all files of the start are open."""
    limits = settings.limits
    own = _open_files() + OWN_FILES
    wanted = own + limits.max_conn + limits.max_http_conn + HTTP_RESERVE + MOST_UNKNOWN
    allowed = _raise_limit(wanted if limits.max_conn and limits.max_http_conn else None)
    room = max(FEWEST, allowed - own)
    if limits.max_conn and room < limits.max_conn:
        logger.warning(
            "fewer connections fit under the limit of open files than --max_conn allows; raise it (LimitNOFILE=, ulimit -n)",
            extra={"open_files": allowed, "connections": room, "max_conn": limits.max_conn},
        )
    else:
        logger.info("open files", extra={"limit": allowed, "connections": room})
    return room


def _raise_limit(wanted: int | None) -> int:
    """The soft limit, raised to `wanted` (None: as far as possible) within the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Systems that say "unlimited" often refuse it when asked for it.
    most = 1 << 20 if hard == resource.RLIM_INFINITY else hard
    target = most if wanted is None else min(wanted, most)
    if soft == resource.RLIM_INFINITY or soft >= target:
        return most if soft == resource.RLIM_INFINITY else soft
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def _open_files() -> int:
    try:
        return len(os.listdir("/dev/fd"))
    except OSError:
        return 64
