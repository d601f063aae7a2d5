"""A reader with a few terminals who runs the blocks of a page in order, on free ports.

Variables that a block exports are set in later blocks. All processes that were started end with the reader.
"""

import os
import re
import shutil
import signal
import subprocess
import sys
import urllib.request
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.docs.pages import ROOT, Block
from tests.server import clean_environ
from tests.services import free_port, redis_executable
from tests.waiting import wait_until

TIMEOUT = 60.0
SEVERAL_SERVERS_TIMEOUT = 120.0  # they wait for each other
LISTENING = re.compile(r"(?:listening on|running on|server at) http://127\.0\.0\.1:(\d+)")
SUBSCRIPTIONS = re.compile(rb"^ropewalk_subscriptions (\S+)$", re.MULTILINE)
PROGRAMS = {"sh": ["bash", "-euo", "pipefail", "-c"], "python": [sys.executable, "-c"], "js": ["node"]}
USUAL_PORT = "8080"
PORT_FLAG = re.compile(r"(?<=--port )\d+")
SERVE_PORT = re.compile(r"(?<=--port )\d+|(?<=runserver )\d+")
HOST_PORT = re.compile(r"(?<=127\.0\.0\.1:)[1-9]\d*")
SERVED_PORT = re.compile(r"^ropewalk serve\b.*?--port (\d+)", re.MULTILINE)

# A reader notices an error response and knows the port of the server. In a shell both need these functions.
PRELUDE = """\
. ./.environment
curl() { command curl --silent --show-error --fail-with-body "$@"; }
ropewalk() {
  case "$1" in
    serve) exec ropewalk serve --port 0 --shutdown_spread 0 "${@:2}" ;;
    publish|push|tail|bench) command ropewalk "$1" --url http://127.0.0.1:8080 "${@:2}" ;;
    *) command ropewalk "$@" ;;
  esac
}
"""


class Reader:
    def __init__(self, home: Path) -> None:
        self._home = home
        self._ports: dict[str, str] = {}
        self._servers: dict[str, subprocess.Popen[bytes]] = {}
        self._followers: list[tuple[Block, Path]] = []
        self._started: list[subprocess.Popen[bytes]] = []
        self._programs = home / ".programs"
        self._programs.mkdir()
        shutil.copytree(ROOT / "examples", home / "examples")
        (home / "node_modules").symlink_to(ROOT / "tests" / "clients" / "node_modules")
        (home / ".environment").touch()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        for process in self._started:
            _end(process)

    def execute(self, block: Block) -> None:
        match block.role:
            case "serve" if " &\n" in block.text:
                self._serve_together(block)
            case "serve":
                self._serve(block)
            case "follow":
                self._follow(block)
            case "run":
                self._run(block)
            case "file":
                name = block.text.split("\n", 1)[0].strip("# ")
                (self._home / name).write_text(block.text)
            case role:
                raise AssertionError(f"unknown role {role!r} of a block")

    def check_followers(self) -> None:
        """Wait until each of them has printed something."""
        for block, output in self._followers:
            wait_until(partial(_has_text, output), partial("this printed nothing:\n{}".format, block.text))

    def _run(self, block: Block) -> None:
        keep = "\nexport -p > .environment" if block.language == "sh" else ""
        done = subprocess.run(
            self._command(block, keep),
            cwd=self._home,
            env=self._environ(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == 0, f"{block.text}\nended with {done.returncode}:\n{done.stdout.decode()}"

    def _follow(self, block: Block) -> None:
        before = self._subscriptions()
        process, output = self._start(block)
        self._followers.append((block, output))
        wait_until(
            lambda: process.poll() is not None or self._subscriptions() > before,
            lambda: f"this subscribed to nothing:\n{block.text}\n{output.read_text()}",
        )
        assert process.poll() is None, f"this ended:\n{block.text}\n{output.read_text()}"

    def _serve(self, block: Block) -> None:
        asked = SERVE_PORT.search(block.text)
        port = asked[0] if asked else USUAL_PORT
        if port in self._servers:
            _end(self._servers[port])
        process, output = self._start(Block(block.language, block.role, SERVE_PORT.sub("0", block.text)))
        wait_until(
            lambda: process.poll() is not None or bool(LISTENING.search(output.read_text())),
            lambda: f"this does not listen:\n{block.text}\n{output.read_text()}",
        )
        found = LISTENING.search(output.read_text())
        assert found, f"this ended:\n{block.text}\n{output.read_text()}"
        self._servers[port], self._ports[port] = process, found[1]

    def _serve_together(self, block: Block) -> None:
        """Servers in the background of one terminal. All their ports are replaced, also those of their peers. Servers that
        were started on the same ports before are stopped."""
        wanted = PORT_FLAG.findall(block.text) + HOST_PORT.findall(block.text)
        for port in wanted:
            if port in self._servers:
                _end(self._servers.pop(port))
            self._ports.setdefault(port, str(free_port()))
        if "redis-server" in block.text and not shutil.which("redis-server"):
            (self._programs / "redis-server").symlink_to(redis_executable())
        text = PORT_FLAG.sub(lambda found: self._ports[found[0]], block.text)
        process, output = self._start(Block(block.language, block.role, f"{text}\nwait\n"))
        self._servers.update(dict.fromkeys(wanted, process))
        for port in SERVED_PORT.findall(block.text):
            wait_until(
                partial(_is_healthy, self._ports[port]),
                lambda: f"not all of these serve:\n{block.text}\n{output.read_text()}",
                SEVERAL_SERVERS_TIMEOUT,
            )

    def _start(self, block: Block) -> tuple[subprocess.Popen[bytes], Path]:
        output = self._home / f".output-{len(self._started)}"
        with output.open("wb") as stream:
            process = subprocess.Popen(
                self._command(block),
                cwd=self._home,
                env=self._environ(),
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        self._started.append(process)
        return process, output

    def _command(self, block: Block, after: str = "") -> list[str]:
        text = PRELUDE + block.text + after if block.language == "sh" else block.text
        text = HOST_PORT.sub(lambda found: self._ports.get(found[0], found[0]), text)
        if block.language == "js":
            script = self._home / "block.mjs"
            script.write_text(text)
            text = str(script)
        return [*PROGRAMS[block.language], text]

    def _environ(self) -> dict[str, str]:
        environ = clean_environ()
        environ["PYTHONUNBUFFERED"] = "1"  # a web framework says at once where it listens
        return {**environ, "PATH": f"{Path(sys.executable).parent}:{self._programs}:{environ['PATH']}"}

    def _subscriptions(self) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self._ports[USUAL_PORT]}/metrics", timeout=TIMEOUT) as answer:
            found = SUBSCRIPTIONS.search(answer.read())
        assert found
        return float(found[1])


def _has_text(output: Path) -> bool:
    return output.stat().st_size > 0


def _is_healthy(port: str) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=TIMEOUT):
            return True
    except OSError:  # includes the error response of a server that is not ready
        return False


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        process.wait(TIMEOUT)
