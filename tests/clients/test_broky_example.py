"""The Broky example for Node: it uses no package and pushes and subscribes over TCP."""

import asyncio
import subprocess

import pytest

from tests.broky_client import client
from tests.docs.pages import ROOT
from tests.server import publish, running_server
from tests.services import free_port

EXAMPLE = ROOT / "examples" / "broky.js"
TIMEOUT_SECONDS = 60.0


def test_the_example_is_short() -> None:
    assert len(EXAMPLE.read_text().splitlines()) < 150


@pytest.mark.needs_node
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_refused_connection_is_reported_in_one_line(host: str) -> None:
    command = ["node", str(EXAMPLE), host, str(free_port()), "sensors/1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert (done.returncode, done.stdout) == (1, "")
    [line] = done.stderr.splitlines()
    assert line.startswith("no connection to ")
    assert "ECONNREFUSED" in line


@pytest.mark.needs_node
async def test_example_pushes_and_subscribes_over_tcp() -> None:
    with running_server("--public") as server:
        node = await asyncio.create_subprocess_exec(
            "node",
            EXAMPLE,
            "127.0.0.1",
            str(server.port),
            "sensors/1",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        assert node.stdin is not None
        assert node.stdout is not None

        async def lines(count: int) -> list[str]:
            assert node.stdout is not None
            async with asyncio.timeout(TIMEOUT_SECONDS):
                return sorted([(await node.stdout.readline()).decode().strip() for _ in range(count)])

        try:
            assert await lines(1) == ["subscribed at 0"]
            async with client(server) as other:
                await other.subscribe(b"sensors/1")
                node.stdin.write("grüße\n".encode())
                assert await lines(2) == ["pushed 1 at 1", "sensors/1 1 grüße"]
                run = await other.receive()
                assert run is not None
                assert getattr(run, "payload", None) == "grüße".encode()
            await publish(server, "sensors/1", '{"from":"http"}')
            assert await lines(1) == ['sensors/1 2 {"from":"http"}']
            server.process.terminate()
            assert await lines(1) == ["error: Server restart"]
        finally:
            node.kill()
            await node.wait()
