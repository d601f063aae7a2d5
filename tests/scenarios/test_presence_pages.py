"""A presence set that is too large for one answer: the Python client lists it page by page, others get one page."""

from contextlib import AsyncExitStack

from tests.cable import cable, identifier
from tests.scenarios.python_clients import CABLE
from tests.server import RunningServer, running_server

NAMES = [f"member {number:03}" for number in range(60)]
INFO = "." * 4000


async def _join_all(stack: AsyncExitStack, server: RunningServer) -> None:
    """Each on its own connection, one after another."""
    for name in NAMES:
        stream = await (await stack.enter_async_context(CABLE.client(server))).subscribe("crowd")
        await stream.join(name, INFO)
        assert (await stream.presence()).total > 0


async def test_large_presence_set_is_listed_page_by_page() -> None:
    with running_server("--public", "--command_burst", "1000") as server:
        async with AsyncExitStack() as stack:
            await _join_all(stack, server)
            watching = await (await stack.enter_async_context(CABLE.client(server))).subscribe("crowd")
            found = await watching.presence()
            assert found.total == len(NAMES)
            assert [member.id for member in found.members] == NAMES
            async with cable(server) as plain:
                await plain.subscribe("crowd")
                await plain.send(command="presence", identifier=identifier("crowd"))
                message = (await plain.until("presence"))["message"]
                assert message["total"] == len(NAMES)
                assert len(message["records"]) < len(NAMES)
                assert message["next"] == message["records"][-1]["id"]
