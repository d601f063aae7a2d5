"""Requests to a running server whose clients go away at the wrong moment."""

import asyncio
from pathlib import Path

import pytest

from tests.metrics import metrics_when
from tests.server import running_server

COMMAND = b'{"command":"subscribe","identifier":"{\\"channel\\":\\"$pubsub\\",\\"stream_name\\":\\"chat\\"}"}'

CUTS = {
    "before the body": b"Content-Length: 100\r\n\r\n",
    "in the body": b"Content-Length: 100\r\n\r\n" + COMMAND[:20],
    "in a chunk": b"Transfer-Encoding: chunked\r\n\r\n40\r\n" + COMMAND[:20],
    "between chunks": b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%b\r\n" % (len(COMMAND), COMMAND),
    "right after the request": b"Content-Length: %d\r\n\r\n%b" % (len(COMMAND), COMMAND),
}


PATHS = ("/events", "/_broadcast", "/api/publish", "/journal/publications", "/journal/archived")


@pytest.mark.parametrize("moment", CUTS)
async def test_a_client_that_is_cut_off_in_its_request_leaves_neither_a_session_nor_a_traceback(
    moment: str, tmp_path: Path
) -> None:
    with running_server("--public", "--sse", "--data_dir", str(tmp_path)) as server:
        for path in PATHS:
            _, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(f"POST {path} HTTP/1.1\r\nHost: x\r\n".encode() + CUTS[moment])
            await writer.drain()
            await metrics_when(server, lambda found: True)  # the server has read what was sent
            writer.transport.abort()
        await metrics_when(server, lambda found: not found["sessions"])
        server.stop()
        assert "Traceback" not in server.log(), server.log()
