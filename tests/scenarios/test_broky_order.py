"""The order in which the frames of one Broky connection are handled: pushes and commands on real sockets."""

import pytest

from ropewalk.protocol.broky.frames import Body, Credit, History, Ping, Pong, Pushed, Run, Subscribe, Subscribed, Unsubscribe
from ropewalk.protocol.broky.runs import build_run
from tests.broky_client import answered_refs, client, new_key
from tests.scenarios.shared_servers import SMALL_OUTBOX, ServerWith
from tests.server import RunningServer


@pytest.fixture(scope="module")
def server(server_with: ServerWith) -> RunningServer:
    return server_with(*SMALL_OUTBOX)


@pytest.mark.parametrize("prefix", [b"ephemeral/", b""])
async def test_pushes_and_commands_in_one_write_are_handled_in_order(server: RunningServer, prefix: bytes) -> None:
    key = prefix + new_key()
    async with client(server) as broky:
        broky.send(
            *(build_run(key, [b"before"]), Subscribe(1, key), build_run(key, [b"between"])),
            *(Unsubscribe(0, key), build_run(key, [b"after"], ref=2), Ping(3)),
        )
        answers, _ = await broky.until(Pong)
        assert [each.payload for each in answers if isinstance(each, Run)] == [b"between"]
        assert [type(each) for each in answers if not isinstance(each, Run)] == [Subscribed, Pushed]


async def test_pushes_wait_for_commands_above_the_rate(server_with: ServerWith) -> None:
    server = server_with("--public", "--tcp_command_rate", "50", "--command_burst", "5", "--command_backlog", "60s")
    keys = [new_key() for _ in range(20)]
    async with client(server) as broky:
        broky.send(*[Subscribe(ref, key) for ref, key in enumerate(keys, 1)], build_run(keys[-1], [b"x"], ref=99))
        answers: list[Body] = []
        while not {99} <= set(answered_refs(answers)) or not any(isinstance(each, Run) for each in answers):
            answers.append((await broky.receive()) or pytest.fail("the connection ended"))
        assert [each.ref for each in answers[:20] if isinstance(each, Subscribed)] == list(range(1, 21))


async def test_command_that_waits_for_credit_holds_up_no_push(server: RunningServer) -> None:
    key, other = new_key(), new_key()
    async with client(server) as producer, client(server, credit=1) as broky:
        for ref in (1, 2):
            producer.send(build_run(key, [b"x" * 1000], ref=ref))
            await producer.expect(Pushed)
        broky.send(History(1, key), History(2, key), build_run(other, [b"y"], ref=3))
        _, pushed = await broky.until(Pushed)
        assert pushed.refs == (3,)
        broky.send(Credit(10_000))
