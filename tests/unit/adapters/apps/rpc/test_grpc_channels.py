"""A list of gRPC hosts: members take turns, and unavailable ones are skipped."""

import pytest

from ropewalk.adapters.apps.rpc.grpc import GrpcApplication
from ropewalk.core.stats import Stats
from ropewalk.model.errors import UserMistake
from tests.rpc_servers import GrpcServer, Refusal
from tests.unit.adapters.apps.rpc.backends import CONTEXT, WELCOME, Scripted, calls, running


async def test_members_of_a_list_take_turns() -> None:
    one, other = Scripted(), Scripted()
    async with GrpcServer(one) as first, GrpcServer(other) as second:
        host = f"grpc-list://{first.host},localhost:{second.port}"
        async with running(GrpcApplication(host, calls())) as application:
            while not one.asked or not other.asked:
                await application.connect(CONTEXT)
            asked = len(one.asked), len(other.asked)
            for _ in range(20):
                await application.connect(CONTEXT)
    assert (len(one.asked) - asked[0], len(other.asked) - asked[1]) == (10, 10)


async def test_unreachable_member_is_skipped() -> None:
    one, other, stats = Scripted(), Scripted(), Stats()
    async with GrpcServer(one) as first, GrpcServer(other) as second:
        application = GrpcApplication(f"grpc-list://{first.host},{second.host}", calls(stats))
        async with running(application):
            await first.stop()
            for _ in range(20):
                assert await application.connect(CONTEXT) == WELCOME
            await second.stop()
            await first.start()
            assert await application.connect(CONTEXT) == WELCOME
    assert len(other.asked) == 20
    assert stats.app_calls_failed == 0


async def test_unavailable_member_is_skipped_without_a_pause() -> None:
    one, other, stats = Scripted(*[Refusal("UNAVAILABLE")] * 50), Scripted(), Stats()
    async with GrpcServer(one) as first, GrpcServer(other) as second:
        application = GrpcApplication(f"grpc-list://{first.host},{second.host}", calls(stats))
        async with running(application):
            for _ in range(10):
                assert await application.connect(CONTEXT) == WELCOME
    assert stats.app_calls_retried == 0


def test_invalid_hosts_are_refused(subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        *("", "grpc-list://", "grpc-list:// , ", "grpc-list://a:1,b"),
        *(
            "ftp://app.test:21",
            "HTTP://app.test",
            "app.test",
            "app.test:http",
            "app.test:99999",
            "me:secret@app.test:1",
            "dns:///",
        ),
    ]
    for host in rows:
        with subtests.test(host=host), pytest.raises(UserMistake, match="--rpc_host names no application"):
            GrpcApplication(host, calls())
