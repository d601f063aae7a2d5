"""Clients that disconnect in the middle of an HTTP request."""

import asyncio
from pathlib import Path

from tests.metrics import metrics_when
from tests.server import RunningServer, running_server
from tests.tcp import HEALTH, tcp

COMMAND = b'{"command":"subscribe","identifier":"{\\"channel\\":\\"$pubsub\\",\\"stream_name\\":\\"chat\\"}"}'

CUTS = {
    "before the body": b"Content-Length: 100\r\n\r\n",
    "in the body": b"Content-Length: 100\r\n\r\n" + COMMAND[:20],
    "in a chunk": b"Transfer-Encoding: chunked\r\n\r\n40\r\n" + COMMAND[:20],
    "between chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(COMMAND), COMMAND),
    "after the request": b"Content-Length: %d\r\n\r\n%b" % (len(COMMAND), COMMAND),
}
PATHS = ("/events", "/_broadcast", "/api/publish", "/journal/publications", "/journal/archived")


async def cut(server: RunningServer, path: str, part: bytes) -> None:
    async with tcp(server) as link:
        await link.send(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + part)
        async with tcp(server) as later:  # answered after the server has read what was sent before
            await later.send(HEALTH)
            await later.response()
        link.abort()


async def test_request_that_is_cut_off_leaves_no_session_and_no_traceback(tmp_path: Path) -> None:
    with running_server("--public", "--sse", "--data_dir", str(tmp_path)) as server:
        await asyncio.gather(*(cut(server, path, part) for path in PATHS for part in CUTS.values()))
        await metrics_when(server, lambda found: not found["sessions"])
        assert server.stop() == 0
