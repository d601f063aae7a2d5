"""Clients of a server with several workers, one at each of them."""

import contextlib
from collections.abc import AsyncIterator

from tests.cable import Cable
from tests.process_tree import worker_of, workers
from tests.server import RunningServer

ATTEMPTS = 100
"""Connections until every worker has one. For two workers, the probability that these are not enough is 2^-99."""


@contextlib.asynccontextmanager
async def one_client_at_each(server: RunningServer) -> AsyncIterator[dict[int, Cable]]:
    """Clients by the worker that serves them."""
    found: dict[int, Cable] = {}
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(ATTEMPTS):
            if len(found) == len(workers(server)):
                break
            client = await Cable.connect(server.cable)
            worker = worker_of(server, client.port)
            if worker in found:
                await client.close()
                continue
            await client.welcomed()
            found[worker] = client
            stack.push_async_callback(client.close)
        assert len(found) == len(workers(server))
        yield found
