"""on_connect: acceptance, identity, errors, and the properties of a connection."""

import asyncio
import logging

import pytest

from ropewalk.channels import App, Connection, Reject
from ropewalk.model.application import CallContext, ConnectResult
from ropewalk.model.errors import ApplicationError
from tests.unit.channels.requests import BO, connect


async def test_app_without_on_connect_rejects_every_client() -> None:
    connect_result = await connect(App())
    assert not connect_result.accepted
    assert "on_connect" in connect_result.reason


async def test_ids_are_the_identity_fields_in_order() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.identify(user="Bo", account=7)
        connection.identify(admin=True)
        assert connection.identity == {"user": "Bo", "account": 7, "admin": True}

    assert await connect(app) == ConnectResult(True, '{"user":"Bo","account":7,"admin":true}')


async def test_on_connect_can_be_a_plain_function() -> None:
    app = App()

    @app.on_connect
    def enter(connection: Connection) -> None:
        connection.identify(name="Bo")

    assert (await connect(app)).accepted


async def test_client_without_an_identity_has_an_empty_json_object_as_ids() -> None:
    app = App()
    app.on_connect(lambda connection: None)
    assert await connect(app) == ConnectResult(True, "{}")


@pytest.mark.parametrize("reason", ["", "no cookie"])
async def test_rejected_client_has_a_reason(reason: str) -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.state["kept"] = "not"
        connection.reject(reason)

    assert await connect(app) == ConnectResult(False, reason=reason or "rejected by enter")


async def test_reject_can_be_raised_directly() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        raise Reject("go away")

    assert await connect(app) == ConnectResult(False, reason="go away")


async def test_failed_handler_is_logged_and_raises_an_application_error(
    caplog: pytest.LogCaptureFixture,
) -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        raise KeyError("secret of the database")

    with pytest.raises(ApplicationError, match=r"^enter failed: KeyError$"):
        await connect(app)
    [record] = caplog.records
    assert (record.name, record.levelno, record.getMessage()) == ("ropewalk.channels", logging.ERROR, "enter failed")
    assert record.exc_info is not None


async def test_sys_exit_in_a_handler_fails_its_call_only() -> None:
    app = App()

    @app.on_connect
    def enter(connection: Connection) -> None:
        raise SystemExit(3)

    with pytest.raises(ApplicationError, match="SystemExit"):
        await connect(app)


async def test_cancelled_task_inside_a_handler_is_an_application_error() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        task.cancel()
        await task

    with pytest.raises(ApplicationError, match="CancelledError"):
        await connect(app)


async def test_cancelled_call_raises_cancelled_error() -> None:
    app, started = App(), asyncio.Event()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        started.set()
        await asyncio.Event().wait()

    call = asyncio.get_running_loop().create_task(connect(app))
    await started.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_coroutine_returned_by_a_plain_function_is_awaited() -> None:
    app = App()

    async def inner(connection: Connection) -> None:
        connection.identify(name="inner")

    app.on_connect(lambda connection: inner(connection))
    assert (await connect(app)).ids == '{"name":"inner"}'


async def test_connection_state_is_encoded_as_json() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.state["roles"] = ["admin"]
        connection.state["empty"] = ""

    assert (await connect(app)).state == {"roles": '["admin"]', "empty": '""'}


async def test_identity_that_is_not_json_is_an_application_error(caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.identify(user=object())

    with pytest.raises(ApplicationError):
        await connect(app)
    assert "the identity of a connection cannot be written as JSON" in caplog.text


# --- properties of a connection ----------------------------------------------------------------------------------------


def test_first_of_repeated_cookies_wins() -> None:
    assert Connection(BO).cookies == {"name": "Bo", "quoted": "a b"}


def test_last_of_repeated_parameters_wins() -> None:
    assert Connection(BO).params == {"room": "b", "empty": ""}


def test_remote_is_the_address_of_the_client() -> None:
    assert Connection(BO).remote == "10.0.0.7"


def test_malformed_url_does_not_fail_the_parameters(subtests: pytest.Subtests) -> None:
    for url in ["", "http://[/cable?", "http://[::1/cable?=", "?#?a=b", "http://x/?%ff=%zz"]:
        with subtests.test(url=url):
            assert all(isinstance(value, str) for value in Connection(CallContext("s", url)).params.values())


def test_ids_that_are_not_a_json_object_give_an_empty_identity(subtests: pytest.Subtests) -> None:
    for ids in ["", "bo", "[1]", "42", "{", "[" * 50_000, '"\\ud800"']:
        with subtests.test(ids=ids):
            assert Connection(CallContext("s", ids=ids)).identity == {}


def test_identify_is_rejected_after_on_connect() -> None:
    with pytest.raises(RuntimeError, match="only be called in on_connect"):
        Connection(BO).identify(name="Eve")
    assert Connection(BO).identity == {"name": "Bo"}
