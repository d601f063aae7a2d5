"""The standalone binary of `make dist` on machines without Python, settings or other programs."""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import pytest
from PyInstaller.archive.readers import CArchiveReader, ZlibArchiveReader

from distribution.one_file import build, carried, modules_of
from ropewalk import __version__
from ropewalk.cli.main import COMMANDS
from ropewalk.protocol.broky.frames import Format, Run
from ropewalk.protocol.broky.runs import build_run
from tests.broky_client import client
from tests.cable import cable
from tests.process_tree import is_running
from tests.server import STOP_SECONDS, RunningServer, publish, running_server
from tests.services import free_port, redis_server
from tests.waiting import wait_until

ROOT = Path(__file__).parents[2]
SECONDS = 60.0
GLIBC = ("libc.so.6", "libm.so.6", "libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2")
ENTER = 'for each in proc dev; do mount --rbind "/$each" "$0/$each" || exit 1; done; exec chroot "$0" /ropewalk "$@"'


@pytest.fixture(scope="module")
def file() -> Path:
    """`make dist` and the tests build the same one, and only if something has changed."""
    return build(ROOT / "dist" / "ropewalk")


@dataclass(frozen=True)
class Machine:
    """`program` is the command that starts the binary there, `temporary` its directory for temporary files."""

    program: tuple[str, ...]
    temporary: Path
    variables: dict[str, str]


def empty_environment(file: Path, home: Path) -> Machine:
    """This machine, with no environment variable but TMPDIR."""
    temporary = home / "tmp"
    temporary.mkdir()
    return Machine((str(file),), temporary, {"TMPDIR": str(temporary)})


def bare_root(file: Path, home: Path) -> Machine:
    """A root directory with the binary, the C library and /tmp only."""
    for name in ("proc", "dev", "tmp"):
        (home / name).mkdir()
    shutil.copy2(file, home / "ropewalk")
    words = subprocess.run(["ldd", str(file)], capture_output=True, text=True, check=True).stdout.split()
    needed = [Path(word) for word in words if word.startswith("/")]
    [libc] = [path for path in needed if path.name == "libc.so.6"]
    for path in {*needed, *(libc.with_name(name) for name in GLIBC)}:
        (home / path.relative_to("/")).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(path, home / path.relative_to("/"))
    shell = ("/bin/sh", "-c", ENTER, str(home))
    return Machine((str(shutil.which("unshare")), "-rm", *shell), home / "tmp", {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin"})


@pytest.fixture
def home() -> Iterator[Path]:
    """With a short name: sockets are below it, and the system limits the length of their names."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.fixture(params=["empty environment", pytest.param("bare root", marks=pytest.mark.needs_namespaces)])
def machine(request: pytest.FixtureRequest, file: Path, home: Path) -> Machine:
    return (bare_root if request.param == "bare root" else empty_environment)(file, home)


@pytest.fixture
def here(file: Path, home: Path) -> Machine:
    return empty_environment(file, home)


def run(machine: Machine, *words: str) -> subprocess.CompletedProcess[str]:
    command = [*machine.program, *words]
    return subprocess.run(command, env=machine.variables, capture_output=True, text=True, timeout=SECONDS, check=False)


def served(machine: Machine, *flags: str) -> AbstractContextManager[RunningServer]:
    return running_server(
        "--public", *flags, inherited=None, allow_tracebacks=False, program=machine.program, **machine.variables
    )


def descendants(pid: int) -> list[int]:
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*found, *(each for child in found for each in descendants(child))]


def status_of(url: str) -> int:
    with urllib.request.urlopen(url, timeout=SECONDS) as answer:
        status: int = answer.status
        return status


# --- a server ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("flags", [(), ("--workers", "2")], ids=["alone", "workers"])
async def test_server_delivers_messages_and_leaves_no_process_or_file_behind(machine: Machine, flags: tuple[str, ...]) -> None:
    with served(machine, *flags) as server:
        processes = [server.process.pid, *descendants(server.process.pid)]
        assert status_of(f"{server.url}/health") == 200
        async with cable(server) as browser, client(server) as subscriber:
            await browser.subscribe("news")
            await subscriber.subscribe(b"news")
            await publish(server, "news", '{"n":1}')
            assert (await browser.expect("message"))["message"] == {"n": 1}
            assert (await subscriber.expect(Run)).payload == b'{"n":1}'
            subscriber.send(build_run(b"news", [b'{"n":2}'], format=Format.JSON))
            assert (await browser.expect("message"))["message"] == {"n": 2}
        assert server.stop() == 0, server.log()
        wait_until(lambda: not any(map(is_running, processes)), "all processes end")
    assert os.listdir(machine.temporary) == []


async def test_embedded_nats_server_starts_and_ends_with_the_server(machine: Machine) -> None:
    with served(machine, "--broker", "nats", "--embed_nats", "--enats_addr", "nats://127.0.0.1:0") as server:
        [nats] = [pid for pid in descendants(server.process.pid) if os.readlink(f"/proc/{pid}/exe").endswith("/nats-server")]
        async with cable(server) as browser:
            await browser.subscribe("news")
            assert (await publish(server, "news", "1"))["offset"] == 1
            assert (await browser.expect("message"))["message"] == 1
        assert server.stop() == 0, server.log()
        wait_until(lambda: not is_running(nats), "nats-server ends with the server")
    assert os.listdir(machine.temporary) == []


async def test_server_uses_redis_and_has_the_files_of_the_demo_page(here: Machine) -> None:
    with redis_server() as redis, served(here, "--demo", "--broker", "redis", "--redis_url", redis.url) as server:
        assert (await publish(server, "news", "1"))["offset"] == 1
        assert (await publish(server, "news", "2"))["offset"] == 2
        assert redis.ask("DBSIZE") > 0
        with urllib.request.urlopen(f"{server.url}/demo") as answer:  # noqa: ASYNC210
            page = answer.read().decode()
        assert "<title>" in page
        for path in ("ropewalk.js", "demo/demo.css", "demo/icon.svg"):
            assert status_of(f"{server.url}/{path}") == 200


def test_channels_of_an_application_may_use_the_standard_library(here: Machine, tmp_path: Path) -> None:
    (tmp_path / "rooms.py").write_text(
        "import colorsys, difflib, statistics, xml.dom.minidom\n"
        "from ropewalk import App, Channel\n"
        "app = App()\n"
        "@app.channel\n"
        "class Room(Channel):\n"
        "    async def subscribed(self):\n"
        "        self.stream_from('rooms')\n"
    )
    with served(here, "--app", "rooms:app", "--app_dir", str(tmp_path)) as server:
        assert status_of(f"{server.url}/health") == 200


# --- signals ----------------------------------------------------------------------------------------------------------


async def test_ctrl_c_in_a_terminal_stops_the_server_gracefully(here: Machine) -> None:
    """The terminal signals all processes, and the one that unpacked the binary signals its child once more."""
    with served(here, "--shutdown_delay", "300ms") as server:
        async with cable(server) as browser:
            for pid in (server.process.pid, *descendants(server.process.pid)):
                os.kill(pid, signal.SIGINT)
            assert (await browser.expect("disconnect"))["reconnect"] is True
        assert server.process.wait(STOP_SECONDS) == 0, server.log()


def test_sighup_makes_the_supervisor_replace_the_workers(here: Machine) -> None:
    with served(here, "--workers", "2") as server:
        server.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "all workers were replaced" in server.log(), "all workers are replaced")
        assert status_of(f"{server.url}/health") == 200


@pytest.mark.parametrize("flags", [(), ("--workers", "2")], ids=["alone", "workers"])
def test_all_processes_end_when_the_started_one_is_killed(here: Machine, flags: tuple[str, ...]) -> None:
    with served(here, *flags) as server:
        processes = descendants(server.process.pid)
        assert processes
        server.process.kill()
        wait_until(lambda: not any(map(is_running, processes)), "the server ends with the process that was killed")


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_server_can_be_started_again_on_its_ports_right_after_it_was_killed(here: Machine, workers: str) -> None:
    place = ("--enats_addr", f"nats://127.0.0.1:{free_port()}", "--enats_store_dir", str(here.temporary / "nats"))
    flags = ("--port", str(free_port()), "--workers", workers, "--broker", "nats", "--embed_nats", *place)
    with served(here, *flags) as server:
        first = await publish(server, "news", "1")
        server.process.kill()
        server.process.wait()
        with served(here, *flags) as successor:
            second = await publish(successor, "news", "2")
            assert (second["epoch"], second["offset"]) == (first["epoch"], 2)


# --- commands ---------------------------------------------------------------------------------------------------------


def test_version_is_printed_and_tls_needs_no_library_of_the_machine(machine: Machine) -> None:
    ended = run(machine, "--version")
    assert (ended.stdout, ended.stderr, ended.returncode) == (f"ropewalk {__version__}\n", "", 0)
    ended = run(machine, "health", "--url", f"https://127.0.0.1:{free_port()}")
    assert ended.returncode == 1
    assert "Connection refused" in ended.stderr


def test_reference_of_all_settings_is_printed(here: Machine) -> None:
    assert (
        run(here, "config", "--config_path=", "--format", "markdown").stdout
        == (ROOT / "docs/reference/settings.md").read_text()
    )


def test_each_command_can_be_loaded(here: Machine) -> None:
    ends = {command: run(here, command, "--help") for command in COMMANDS}
    failed = {
        name: end for name, end in ends.items() if end.stderr or end.returncode or not end.stdout.startswith("usage: ropewalk")
    }
    assert failed == {}


def test_error_of_an_extra_that_is_not_included_names_the_pip_command(here: Machine) -> None:
    for words, extra in (
        (("serve", "--public", "--data_dir", "data"), "journal"),
        (("serve", "--public", "--rpc_host", "127.0.0.1:1"), "grpc"),
        (("pipeline", "run", "archive"), "spark"),
    ):
        ended = run(here, *words)
        assert ended.returncode == 2
        assert f"the standalone binary does not include it; use pip install '.[{extra}]'" in ended.stderr
        assert "Traceback" not in ended.stderr


# --- contents ---------------------------------------------------------------------------------------------------------


def test_binary_contains_the_libraries_of_its_extras_only(file: Path) -> None:
    modules = CArchiveReader(str(file)).open_embedded_archive("PYZ.pyz")
    assert isinstance(modules, ZlibArchiveReader)
    found = {name.partition(".")[0] for name in modules.toc} - sys.stdlib_module_names
    assert {"aiohttp", "redis", "nats", "uvloop"} < {*modules_of(carried())}
    assert {name for name in found if not name.startswith("_sysconfigdata")} <= {"ropewalk", *modules_of(carried())}


def test_binary_is_not_built_again_without_a_change(file: Path) -> None:
    before = file.stat()
    assert build(file).stat() == before
