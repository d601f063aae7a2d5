"""Applications over HTTP: authentication, responses and the circuit breaker."""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from ropewalk.adapters.apps.rpc.http import MAX_RESPONSE_BYTES, HttpApplication
from ropewalk.core.stats import Stats
from ropewalk.model.application import ConnectResult
from ropewalk.model.errors import ApplicationError, Unanswered, Unavailable, UserMistake
from ropewalk.testing.clock import ManualClock
from tests.rpc_servers import CERTIFICATE, HttpServer, Refusal
from tests.unit.adapters.apps.rpc.backends import CONTEXT, WELCOME, Scripted, calls, once, running


@asynccontextmanager
async def answering(response: web.StreamResponse | Exception, stats: Stats | None = None) -> AsyncIterator[HttpApplication]:
    """An application that gives this response to every request."""

    async def handle(request: web.Request) -> web.StreamResponse:
        if isinstance(response, Exception):
            raise response
        return response

    server = web.Application()
    server.router.add_route("*", "/{path:.*}", handle)
    async with TestServer(server) as running_server:
        application = HttpApplication(str(running_server.make_url("/base/")), "", calls(stats))
        async with running(application):
            yield application


# --- Authentication --------------------------------------------------------------------------------------------------


async def test_secret_is_sent_with_every_call() -> None:
    async with HttpServer(Scripted(), secret="s3cret") as server:
        application = HttpApplication(server.url, "s3cret", calls())
        async with running(application):
            assert await application.connect(CONTEXT) == WELCOME
    assert server.seen[0]["authorization"] == "Bearer s3cret"
    assert server.seen[0]["content-type"] == "application/json"


async def test_wrong_secret_is_unauthorized_and_not_retried(subtests: pytest.Subtests) -> None:
    for secret in ["", "wrong"]:
        with subtests.test(secret=secret):
            async with HttpServer(Scripted(), secret="s3cret") as server:
                application = HttpApplication(server.url, secret, calls())
                async with running(application):
                    with pytest.raises(ApplicationError, match="unauthorized"):
                        await application.connect(CONTEXT)
            assert len(server.seen) == 1
            assert ("authorization" in server.seen[0]) is bool(secret)


async def test_secret_is_neither_logged_nor_in_errors(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "ropewalk")
    application = HttpApplication("http://ann:s3cret@127.0.0.1:1/base?key=s3cret", "", once())
    async with running(application):
        for _ in range(12):
            with pytest.raises(Unavailable) as caught:
                await application.connect(CONTEXT)
            assert "s3cret" not in str(caught.value)
    assert caplog.records
    assert "s3cret" not in "".join(str(vars(record)) for record in caplog.records)
    assert "s3cret" not in application.health()


def test_invalid_urls_are_refused(subtests: pytest.Subtests) -> None:
    for url in ["", "localhost:50051", "ftp://x/", "http://", "http://[::1", "http://x:99999/"]:
        with subtests.test(url=url), pytest.raises(UserMistake, match="must look like"):
            HttpApplication(url, "", calls())


def test_user_and_secret_together_are_refused() -> None:
    with pytest.raises(UserMistake, match="only one") as caught:
        HttpApplication("http://ann:s3cret@x/", "other", calls())
    assert "s3cret" not in str(caught.value)


async def test_https_certificate_is_verified() -> None:
    async with HttpServer(Scripted(), tls=True) as server:
        async with running(HttpApplication(server.url, "", calls(), tls_root_ca=str(CERTIFICATE))) as trusting:
            assert await trusting.connect(CONTEXT) == WELCOME
        async with running(HttpApplication(server.url, "", once())) as suspicious:
            with pytest.raises(Unavailable):
                await suspicious.connect(CONTEXT)
    with pytest.raises(UserMistake, match="nowhere"):
        HttpApplication("https://x/", "", calls(), tls_root_ca="/nowhere.pem")


# --- Responses -------------------------------------------------------------------------------------------------------


async def test_other_statuses_than_200_are_application_errors(subtests: pytest.Subtests) -> None:
    for status in [201, 204, 400, 403, 404, 422, 429, 500, 501]:
        with subtests.test(status=status):
            backend = Scripted(Refusal(status=status))
            async with HttpServer(backend) as server, running(HttpApplication(server.url, "", calls())) as application:
                with pytest.raises(ApplicationError, match=str(status)):
                    await application.connect(CONTEXT)
            assert len(backend.asked) == 1


async def test_gateway_errors_are_retried(subtests: pytest.Subtests) -> None:
    for status in [502, 503, 504]:
        with subtests.test(status=status):
            stats = Stats()
            backend = Scripted(Refusal(status=status))
            async with HttpServer(backend) as server, running(HttpApplication(server.url, "", calls(stats))) as application:
                assert await application.connect(CONTEXT) == WELCOME
                assert application.health() == ""
            assert (len(backend.asked), stats.app_calls_failed, stats.app_calls_retried) == (2, 0, 1)


async def test_repeated_gateway_errors_are_unhealthy_and_open_the_circuit(subtests: pytest.Subtests) -> None:
    for status in [502, 503, 504]:
        with subtests.test(status=status):
            backend = Scripted(*[Refusal(status=status)] * 20)
            async with HttpServer(backend) as server, running(HttpApplication(server.url, "", once())) as application:
                for _ in range(10):
                    with pytest.raises(Unavailable, match=str(status)) as caught:
                        await application.connect(CONTEXT)
                    assert isinstance(caught.value, Unanswered) is (status == 504)
                assert application.health() == "the application does not respond"
                assert application.gauges()["app_circuit_open"] == 1


async def test_redirects_are_not_followed() -> None:
    async with HttpServer(Scripted()) as elsewhere:
        moved = web.HTTPTemporaryRedirect(f"{elsewhere.url}/connect")
        async with answering(moved) as application:
            with pytest.raises(ApplicationError, match="307"):
                await application.connect(CONTEXT)
    assert elsewhere.seen == []


async def test_status_may_be_a_name_and_null_means_absent() -> None:
    answer = {"status": "SUCCESS", "identifiers": "me", "transmissions": None, "env": {"cstate": {"gone": None}}, "news": 1}
    async with answering(web.json_response(answer)) as application:
        assert await application.connect(CONTEXT) == ConnectResult(True, "me", (), {"gone": ""})


async def test_unreadable_responses_are_application_errors(subtests: pytest.Subtests) -> None:
    for body in [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b'{"status":1',
        b"\xff",
        b"[" * 100_000,
        b'{"status":7}',
        b'{"status":1,"env":7}',
    ]:
        with subtests.test(body=body):
            async with answering(web.Response(body=body)) as application:
                with pytest.raises(ApplicationError, match=r"cannot be read|nested more than 128 deep"):
                    await application.connect(CONTEXT)


async def test_response_that_is_too_large_is_an_application_error() -> None:
    async with answering(web.Response(body=b" " * (MAX_RESPONSE_BYTES + 1))) as application:
        with pytest.raises(ApplicationError, match="larger than"):
            await application.connect(CONTEXT)


async def test_response_is_not_decompressed() -> None:
    packed = web.Response(body=b'{"status":1}', headers={"Content-Encoding": "gzip"})
    async with answering(packed) as application:
        assert (await application.connect(CONTEXT)).accepted, "the body is read as it came"


@pytest.mark.parametrize(
    ("response", "error", "retried"),
    [
        (b"HTTP/1.1 200 OK\r\nContent-Length: 99\r\n\r\n{", Unavailable, False),
        (b"HTTP/1.1 200 OK\r\n", Unavailable, True),
        (b"nonsense\r\n\r\n", ApplicationError, False),
    ],
    ids=["cut in the answer", "cut in the head", "no HTTP"],
)
async def test_broken_connection_is_retried_only_before_the_response(
    response: bytes, error: type[Exception], retried: bool
) -> None:
    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(response)
        await writer.drain()
        writer.close()

    stats = Stats()
    at_most_twice = calls(stats, chance=iter([0.0, 1e9]).__next__)
    async with await asyncio.start_server(handle, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        application = HttpApplication(f"http://127.0.0.1:{port}", "", at_most_twice)
        async with running(application):
            with pytest.raises(error):
                await application.connect(CONTEXT)
    assert (stats.app_calls_retried > 0) is retried


# --- Circuit breaker -------------------------------------------------------------------------------------------------


async def test_circuit_opens_when_requests_fail_and_closes_when_they_succeed(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO, "ropewalk.application")
    clock = ManualClock()
    async with HttpServer(Scripted()) as server:
        application = HttpApplication(server.url, "", once(), clock=clock)
        async with running(application):
            await server.stop()
            for _ in range(10):
                assert application.gauges()["app_circuit_open"] == 0
                with pytest.raises(Unavailable, match="cannot be reached"):
                    await application.connect(CONTEXT)
            assert application.gauges()["app_circuit_open"] == 1
            await server.start()
            with pytest.raises(Unavailable, match="circuit breaker open"):
                await application.connect(CONTEXT)
            clock.advance(5)
            for _ in range(5):
                assert application.gauges()["app_circuit_open"] == 1
                assert await application.connect(CONTEXT) == WELCOME
            assert application.gauges()["app_circuit_open"] == 0
            assert application.health() == ""
    logged = [record.message for record in caplog.records]
    assert len([line for line in logged if "circuit breaker open" in line]) == 1
    assert len([line for line in logged if "circuit breaker closed" in line]) == 1


async def test_application_errors_do_not_open_the_circuit() -> None:
    backend = Scripted(*[Refusal(status=500)] * 20, *[ApplicationError("it broke")] * 20)
    async with HttpServer(backend) as server, running(HttpApplication(server.url, "", calls())) as application:
        for _ in range(40):
            with pytest.raises(ApplicationError):
                await application.connect(CONTEXT)
        assert await application.connect(CONTEXT) == WELCOME
