"""Who is let in, as whom, and what a handler can see of a client."""

import asyncio
import logging

import pytest

from ropewalk.channels import App, Connection, Reject
from ropewalk.model.application import CallContext, ConnectResult
from ropewalk.model.errors import ApplicationError
from tests.unit.channels.requests import BO, connect


async def test_an_app_without_on_connect_lets_nobody_in() -> None:
    connect_result = await connect(App())
    assert not connect_result.accepted
    assert "on_connect" in connect_result.reason


async def test_the_ids_are_the_given_fields_in_their_order() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.identify(user="Bo", account=7)
        connection.identify(admin=True)
        assert connection.identity == {"user": "Bo", "account": 7, "admin": True}

    assert await connect(app) == ConnectResult(True, '{"user":"Bo","account":7,"admin":true}')


async def test_a_plain_function_may_decide_too() -> None:
    app = App()

    @app.on_connect
    def enter(connection: Connection) -> None:
        connection.identify(name="Bo")

    assert (await connect(app)).accepted


async def test_a_client_that_is_let_in_without_a_name_has_empty_ids_in_json() -> None:
    app = App()
    app.on_connect(lambda connection: None)
    assert await connect(app) == ConnectResult(True, "{}")


@pytest.mark.parametrize("reason", ["", "no cookie"])
async def test_a_rejected_client_is_turned_away_with_a_reason_for_the_log(reason: str) -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.state["kept"] = "not"
        connection.reject(reason)

    assert await connect(app) == ConnectResult(False, reason=reason or "rejected by enter")


async def test_reject_can_be_raised_by_hand() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        raise Reject("go away")

    assert await connect(app) == ConnectResult(False, reason="go away")


async def test_a_handler_that_fails_is_logged_with_its_traceback_and_is_an_application_error(
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


async def test_sys_exit_in_a_handler_ends_nothing_but_its_call() -> None:
    app = App()

    @app.on_connect
    def enter(connection: Connection) -> None:
        raise SystemExit(3)

    with pytest.raises(ApplicationError, match="SystemExit"):
        await connect(app)


async def test_a_task_that_was_cancelled_under_a_handler_is_a_failure_and_not_the_end_of_the_call() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        task = asyncio.get_running_loop().create_task(asyncio.Event().wait())
        task.cancel()
        await task

    with pytest.raises(ApplicationError, match="CancelledError"):
        await connect(app)


async def test_a_call_that_is_cancelled_ends_as_cancelled() -> None:
    app, begun = App(), asyncio.Event()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        begun.set()
        await asyncio.Event().wait()

    call = asyncio.get_running_loop().create_task(connect(app))
    await begun.wait()
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call


async def test_a_plain_function_around_an_async_one_is_awaited() -> None:
    app = App()

    async def inner(connection: Connection) -> None:
        connection.identify(name="inner")

    app.on_connect(lambda connection: inner(connection))
    assert (await connect(app)).ids == '{"name":"inner"}'


async def test_the_state_of_a_connection_is_kept_as_json() -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.state["roles"] = ["admin"]
        connection.state["empty"] = ""

    assert (await connect(app)).state == {"roles": '["admin"]', "empty": '""'}


async def test_an_identity_that_is_no_json_is_a_failure_that_says_so(caplog: pytest.LogCaptureFixture) -> None:
    app = App()

    @app.on_connect
    async def enter(connection: Connection) -> None:
        connection.identify(user=object())

    with pytest.raises(ApplicationError):
        await connect(app)
    assert "the identity of a connection cannot be written as JSON" in caplog.text


# --- what is seen of a client ----------------------------------------------------------------------------------------


def test_cookies_are_read_from_the_header_and_the_first_of_a_name_counts() -> None:
    assert Connection(BO).cookies == {"name": "Bo", "quoted": "a b"}


def test_of_a_repeated_parameter_the_last_counts() -> None:
    assert Connection(BO).params == {"room": "b", "empty": ""}


def test_the_address_of_the_client_is_its_remote() -> None:
    assert Connection(BO).remote == "10.0.0.7"


@pytest.mark.parametrize("url", ["", "http://[/cable?", "http://[::1/cable?=", "?#?a=b", "http://x/?%ff=%zz"])
def test_no_url_makes_the_parameters_raise(url: str) -> None:
    assert all(isinstance(value, str) for value in Connection(CallContext("s", url)).params.values())


@pytest.mark.parametrize("ids", ["", "bo", "[1]", "42", "{", "[" * 50_000, '"\\ud800"'])
def test_ids_that_are_no_json_object_are_an_empty_identity(ids: str) -> None:
    assert Connection(CallContext("s", ids=ids)).identity == {}


def test_a_connection_is_identified_when_it_arrives_and_never_after() -> None:
    with pytest.raises(RuntimeError, match="on_connect only"):
        Connection(BO).identify(name="Eve")
    assert Connection(BO).identity == {"name": "Bo"}
