"""Applications over gRPC: status codes, sizes and TLS."""

import asyncio
import importlib
import sys

import pytest
import uvloop

from ropewalk.adapters.apps.rpc.grpc import GrpcApplication, GrpcOptions
from ropewalk.core.stats import Stats
from ropewalk.model.application import Action, CommandCall, CommandResult
from ropewalk.model.errors import ApplicationError, Unavailable, UserMistake
from tests.rpc_servers import CERTIFICATE, GrpcServer, Refusal
from tests.unit.adapters.apps.rpc.backends import CONTEXT, WELCOME, Scripted, calls, once, running


async def test_temporary_errors_are_retried(subtests: pytest.Subtests) -> None:
    for code in ["UNAVAILABLE", "RESOURCE_EXHAUSTED"]:
        with subtests.test(code=code):
            backend, stats = Scripted(Refusal(code), Refusal(code)), Stats()
            async with GrpcServer(backend) as server, running(GrpcApplication(server.host, calls(stats))) as application:
                assert await application.connect(CONTEXT) == WELCOME
            assert len(backend.asked) == 3
            assert (stats.app_calls, stats.app_calls_failed, stats.app_calls_retried) == (1, 0, 2)


async def test_calls_given_up_by_the_application_are_not_retried(subtests: pytest.Subtests) -> None:
    for code in ["DEADLINE_EXCEEDED", "CANCELLED"]:
        with subtests.test(code=code):
            backend = Scripted(Refusal(code))
            async with GrpcServer(backend) as server, running(GrpcApplication(server.host, calls())) as application:
                with pytest.raises(Unavailable, match=code):
                    await application.connect(CONTEXT)
            assert len(backend.asked) == 1


async def test_other_status_codes_are_application_errors(subtests: pytest.Subtests) -> None:
    for code in ["UNAUTHENTICATED", "INVALID_ARGUMENT", "UNKNOWN", "INTERNAL", "UNIMPLEMENTED"]:
        with subtests.test(code=code):
            backend = Scripted(Refusal(code))
            async with GrpcServer(backend) as server, running(GrpcApplication(server.host, calls())) as application:
                with pytest.raises(ApplicationError, match=code):
                    await application.connect(CONTEXT)
            assert len(backend.asked) == 1


async def test_response_that_is_too_large_is_not_retried() -> None:
    backend = Scripted(CommandResult(transmissions=("x" * 2000,)))
    async with (
        GrpcServer(backend) as server,
        running(GrpcApplication(server.host, calls(), GrpcOptions(max_receive_bytes=1000))) as application,
    ):
        with pytest.raises(ApplicationError, match="larger than max"):
            await application.command(CommandCall(CONTEXT, Action.PERFORM, "a"))
    assert len(backend.asked) == 1


async def test_call_that_is_too_large_is_not_sent() -> None:
    backend = Scripted()
    async with (
        GrpcServer(backend) as server,
        running(GrpcApplication(server.host, calls(), GrpcOptions(max_send_bytes=1000))) as application,
    ):
        with pytest.raises(ApplicationError, match="larger than max"):
            await application.command(CommandCall(CONTEXT, Action.PERFORM, "a", data="x" * 2000))
    assert backend.asked == []


async def test_dns_name_is_resolved() -> None:
    async with GrpcServer(Scripted()) as server:
        application = GrpcApplication(f"dns:///localhost:{server.port}", calls())
        async with running(application):
            assert await application.connect(CONTEXT) == WELCOME


# --- TLS --------------------------------------------------------------------------------------------------------------


async def test_tls_certificate_is_verified() -> None:
    async with GrpcServer(Scripted(), tls=True) as server:
        trusting = GrpcApplication(server.host, calls(), GrpcOptions(tls=True, tls_root_ca=str(CERTIFICATE)))
        async with running(trusting):
            assert await trusting.connect(CONTEXT) == WELCOME
        suspicious = GrpcApplication(server.host, once(), GrpcOptions(tls=True))
        async with running(suspicious):
            with pytest.raises(Unavailable):
                await suspicious.connect(CONTEXT)


def test_unreadable_root_certificates_are_refused() -> None:
    with pytest.raises(UserMistake, match="nowhere"):
        GrpcApplication("127.0.0.1:1", calls(), GrpcOptions(tls=True, tls_root_ca="/nowhere.pem"))


# --- Event loop and libraries ----------------------------------------------------------------------------------------


def test_calls_work_on_uvloop() -> None:
    async def conversation() -> None:
        async with GrpcServer(Scripted()) as server, running(GrpcApplication(server.host, calls())) as application:
            assert await asyncio.gather(*(application.connect(CONTEXT) for _ in range(100))) == [WELCOME] * 100

    uvloop.run(conversation())


@pytest.mark.parametrize("missing", ["grpc", "google.protobuf"])
def test_missing_libraries_affect_only_the_grpc_adapter(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith("ropewalk.adapters.apps.rpc")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, missing, None)
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("ropewalk.adapters.apps.rpc.grpc")
    importlib.import_module("ropewalk.adapters.apps.rpc.http")
