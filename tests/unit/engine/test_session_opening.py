"""Resuming by sid: a token and the credentials seen by the application must belong to the same user."""

from collections.abc import Callable

import pytest

from ropewalk.adapters.apps.authenticators import NoAuth
from ropewalk.model.application import CallContext, ConnectResult
from ropewalk.model.errors import Unavailable
from ropewalk.model.limits import Limits
from ropewalk.model.sessions import Accepted, ConnectRequest, Refused
from tests.unit.engine.script import CHAT, Script
from tests.unit.engine.workbench import Client, Workbench, public, settle

PATIENT = Limits(ping_interval=0, resume_timeout=3600, disconnect_rate=0)


class Tokens:
    """The token is the user; `bad` is refused, and without a token the next authenticator decides."""

    async def authenticate(self, request: ConnectRequest, sid: str) -> Accepted | Refused | None:
        if not request.token:
            return None
        return Refused("unauthorized") if request.token == "bad" else Accepted(request.token)


class ByCookie(Script):
    """Takes the user from the cookie: the part before the dash."""

    async def connect(self, context: CallContext, wanted: Callable[[], bool] = lambda: True) -> ConnectResult:
        await super().connect(context, wanted)
        name = context.headers.get("cookie", "unknown").partition("-")[0]
        return (
            ConnectResult(False) if name == "unknown" else ConnectResult(True, name, state={"seen": context.headers["cookie"]})
        )


async def detach(bench: Workbench, token: str = "", cookie: str = "") -> Client:
    client = await bench.connect(token=token, cookie=cookie)
    await client.send(command="subscribe", identifier=CHAT if bench.node.application else public("s"))
    client.session.connection_lost()
    await settle()
    return client


def is_restored(client: Client) -> bool:
    return "restored" in client.connection.replies()[0]


# --- tokens ----------------------------------------------------------------------------------------------------------


async def test_sid_is_not_consumed_by_another_users_token() -> None:
    async with Workbench(PATIENT, authenticators=[Tokens()]) as bench:
        client = await detach(bench, token="bo")
        thief, bad = await bench.connect(client.sid, token="eve"), await bench.connect(client.sid, token="bad")
        assert (is_restored(thief), thief.session.ids) == (False, "eve")
        assert bad.connection.closed == (1000, "Auth Failed")
        assert is_restored(await bench.connect(client.sid, token="bo"))


async def test_live_session_is_not_taken_over_with_another_users_token() -> None:
    async with Workbench(PATIENT, authenticators=[Tokens()]) as bench:
        client = await bench.connect(token="bo")
        thief = await bench.connect(client.sid, token="eve")
        assert not is_restored(thief)
        assert client.connection.closed is None
        assert is_restored(await bench.connect(client.sid, token="bo"))


async def test_session_accepted_by_the_application_does_not_resume_with_another_users_token() -> None:
    script = Script()  # accepts all as bo
    async with Workbench(PATIENT, authenticators=[Tokens()], application=script) as bench:
        client = await detach(bench)
        thief = await bench.connect(client.sid, token="eve")
        assert (is_restored(thief), thief.session.ids) == (False, "eve")
        assert is_restored(await bench.connect(client.sid, token="bo"))


async def test_unchecked_token_does_not_prevent_a_resume_on_a_public_server() -> None:
    async with Workbench(PATIENT, authenticators=[NoAuth()]) as bench:
        client = await detach(bench)
        assert is_restored(await bench.connect(client.sid, token="unchecked"))


async def test_base_protocol_session_is_not_ended_by_its_sid() -> None:
    async with Workbench(PATIENT) as bench:
        client = await bench.connect(extended=False)
        assert not is_restored(await bench.connect(client.sid))
        assert client.connection.closed is None


# --- what the application sees -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("cookie", ["bo-1", ""])
async def test_same_or_no_cookie_resumes_without_calling_the_application(cookie: str) -> None:
    script = ByCookie()
    async with Workbench(PATIENT, authenticators=(), application=script) as bench:
        client = await detach(bench, cookie="bo-1")
        assert is_restored(await bench.connect(client.sid, cookie=cookie, pi="5"))
        assert script.events.count("connect") == 1


async def test_renewed_cookie_is_checked_by_the_application_and_the_session_resumes() -> None:
    script = ByCookie()
    async with Workbench(PATIENT, authenticators=(), application=script) as bench:
        client = await detach(bench, cookie="bo-1")
        back = await bench.connect(client.sid, cookie="bo-2")
        await settle()
        assert back.connection.replies()[0]["restored_ids"] == [CHAT]
        assert sorted(script.events[1:]) == ["connect", "connect", "disconnect", "restored", "subscribe"]
        _, asked = script.callers
        assert asked.sid not in (client.sid, back.sid)
        (disconnect_call,) = script.disconnect_calls  # for the Connect call of the check
        assert (disconnect_call.context.sid, disconnect_call.context.ids, disconnect_call.subscriptions) == (
            asked.sid,
            "bo",
            {},
        )
        assert disconnect_call.context.state == {"seen": "bo-2"}
        (restore_call,) = script.restore_calls
        assert restore_call.context.state == {"seen": "bo-1"}
        assert restore_call.context.headers == {"cookie": "bo-2"}
        back.session.connection_lost()
        await settle()
        assert is_restored(await bench.connect(back.sid, cookie="bo-2"))  # the session now has the new cookie
        assert script.events.count("connect") == 2
    assert len(script.disconnect_calls) == script.events.count("connect")


@pytest.mark.parametrize(("cookie", "ids"), [("eve-1", "eve"), ("unknown", "")])
async def test_session_does_not_resume_for_another_user_of_the_application(cookie: str, ids: str) -> None:
    script = ByCookie()
    async with Workbench(PATIENT, authenticators=(), application=script) as bench:
        client = await detach(bench, cookie="bo-1")
        thief = await bench.connect(client.sid, cookie=cookie)
        await settle()
        assert (is_restored(thief), thief.session.ids) == (False, ids)
        owner = await bench.connect(client.sid, cookie="bo-1")
        assert is_restored(owner)
    admitted = [context for context in script.callers if not context.headers["cookie"].startswith("unknown")]
    assert len(script.disconnect_calls) == len(admitted)


async def test_session_is_kept_when_the_application_is_unavailable() -> None:
    script = ByCookie()
    async with Workbench(PATIENT, authenticators=(), application=script) as bench:
        client = await detach(bench, cookie="bo-1")
        script.connect_result = Unavailable("down")
        assert (await bench.connect(client.sid, cookie="bo-2")).connection.closed == (1011, "Auth Error")
        script.connect_result = ConnectResult(True)
        assert is_restored(await bench.connect(client.sid, cookie="bo-2"))


async def test_session_accepted_by_token_resumes_without_calling_the_application() -> None:
    script = ByCookie()
    async with Workbench(PATIENT, authenticators=[Tokens()], application=script) as bench:
        client = await detach(bench, token="bo", cookie="bo-1")
        assert is_restored(await bench.connect(client.sid, cookie="bo-2"))
        assert "connect" not in script.events
