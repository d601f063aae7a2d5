"""Sessions that outlive their connections: restored subscriptions and messages, presence, expiry and limits."""

import time

import aiohttp
import pytest

from tests.cable import BASE, EXTENDED, Cable, cable, identifier
from tests.clients.credentials import BROADCAST_KEY, SECRET, SHORT_LIFE, token
from tests.metrics import metrics, metrics_when
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer, publish, running_server
from tests.waiting import GROWING_SECONDS

SMALL_SESSION = 2048


@pytest.fixture(scope="module")
def server(server_with: ServerWith, worker_flags: tuple[str, ...]) -> RunningServer:
    return server_with("--public", "--resume_timeout", "60s", "--max_session_size", str(SMALL_SESSION), *worker_flags)


# --- positions ------------------------------------------------------------------------------------------------------


async def test_positions_are_sent_to_clients_that_ask_for_them(server: RunningServer) -> None:
    for protocol in (BASE, EXTENDED):
        await positions_are_sent_on_request(server, protocol)


async def positions_are_sent_on_request(server: RunningServer, protocol: str) -> None:
    position = await publish(server, f"positions/{protocol}", "one")
    wanted = identifier(f"positions/{protocol}")
    tips = {f"positions/{protocol}": {"epoch": position["epoch"], "tip": 1}}
    for params, more in (({}, {}), ({"positions": "0"}, {}), ({"positions": "1"}, {"streams": tips})):
        async with cable(server, protocol=protocol, params=params) as client:
            await client.send(command="subscribe", identifier=wanted)
            assert await client.next() == {"type": "confirm_subscription", "identifier": wanted, **more}


# --- restoring --------------------------------------------------------------------------------------------------------


async def test_restored_session_has_its_subscriptions_and_misses_nothing(server: RunningServer) -> None:
    async with cable(server) as client:
        await client.subscribe("restore")
        await publish(server, "restore", "one")
        await client.messages(1)
        await client.cut()
        await publish(server, "restore", "two")
        back = await Cable.connect(server.cable, sid=client.sid)
        welcome = await back.welcomed(restored=True)
        assert welcome["restored_ids"] == [identifier("restore")]
        assert welcome["sid"] != client.sid
        await publish(server, "restore", "three")  # held until the client requests the history before it
        missed = await back.ask_history("restore", client.positions["restore"])
        assert [frame["message"] for frame in missed] == ["two", "three"]
        await publish(server, "restore", "four")
        assert await back.messages(1) == ["four"]
        await back.close()


async def test_sid_restores_a_session_once(server: RunningServer) -> None:
    async with cable(server) as client:
        await client.cut()
        async with cable(server, sid=client.sid), cable(server, welcome=False, sid=client.sid) as second:
            await second.welcomed(restored=False)


async def test_unknown_sid_begins_a_new_session(server: RunningServer) -> None:
    for sid in ("unknown", "", "x" * 2000, "../../etc/passwd"):
        async with cable(server, welcome=False, params={"sid": sid}) as client:
            welcome = await client.welcomed(restored=False)
            assert welcome["sid"] not in ("", sid)


async def test_session_of_the_base_protocol_is_not_restored(server: RunningServer) -> None:
    async with cable(server, protocol=BASE) as client:
        await client.cut()
        async with cable(server, welcome=False, protocol=BASE, sid=client.sid) as second:
            await second.welcomed(restored=False)


async def test_client_that_reconnects_early_takes_over_its_session(server: RunningServer) -> None:
    async with cable(server) as first:
        await first.subscribe("takeover")
        async with cable(server, sid=first.sid) as second:
            assert await first.closed() == (1000, "Session resumed elsewhere")
            assert await second.ask_history("takeover") == []
            await publish(server, "takeover", "hello")
            assert await second.messages(1) == ["hello"]


async def test_restored_session_without_a_history_request_gets_held_messages_and_a_gap(worker_flags: tuple[str, ...]) -> None:
    for seconds in GROWING_SECONDS:
        if await held_messages_and_gap_are_sent(seconds, worker_flags):
            return
    pytest.fail("no message could be published within the resume timeout")


async def held_messages_and_gap_are_sent(seconds: int, worker_flags: tuple[str, ...]) -> bool:
    """False if the message to hold was published too late, after so many seconds."""
    with running_server("--public", "--resume_timeout", f"{seconds}s", *worker_flags) as hasty:
        async with cable(hasty) as client:
            await client.subscribe("news")
            await publish(hasty, "news", "one")
            await client.messages(1)
            await client.cut()
        await publish(hasty, "news", "missed")
        begun = time.monotonic()
        async with cable(hasty, sid=client.sid) as back:
            await publish(hasty, "news", "held")
            if time.monotonic() - begun >= seconds:
                return False
            first = await back.next()
            # A message that comes before its worker listens to the stream belongs to the gap.
            held = ["held"] if first.get("message") == "held" else []
            assert held or worker_flags
            gap = await back.expect("reject_history", reason="unclaimed") if held else first
            assert gap["reason"] == "unclaimed"
            assert {"oldest": 1, "tip": 3}.items() <= gap["streams"]["news"].items()
            await publish(hasty, "news", "live")
            assert await back.messages(1) == ["live"]
            late = await back.ask_history("news", client.positions["news"])
            assert [frame["message"] for frame in late] + held == ["missed", "held"]
    return True


async def test_restart_without_a_journal_changes_the_epoch(worker_flags: tuple[str, ...]) -> None:
    with running_server("--public", *worker_flags) as before:
        async with cable(before) as client:
            await client.subscribe("news")
            await publish(before, "news", "old")
            await client.messages(1)
            before.kill()
    with running_server("--public", *worker_flags) as after:
        for tip in (0, 1):  # while the stream is not known again, and once it is
            async with cable(after, welcome=False, sid=client.sid) as back:
                await back.welcomed(restored=False)
                await back.send(command="subscribe", identifier=identifier("news"), history={"streams": client.positions})
                await back.expect("confirm_subscription")
                gap = await back.expect("reject_history", reason="epoch_changed")
                assert gap["streams"]["news"]["tip"] == tip
                assert gap["streams"]["news"]["epoch"] != client.positions["news"]["epoch"]
            await publish(after, "news", "new")


# --- repeated requests -----------------------------------------------------------------------------------------------


async def test_repeated_subscribe_is_confirmed_and_delivers_once(server: RunningServer) -> None:
    async with cable(server) as client:
        await client.subscribe("twice")
        await client.subscribe("twice")
        await publish(server, "twice", "one")
        assert await client.messages(1) == ["one"]
        assert await client.subscribe("twice", history={"since": 1}) == []  # it has it already
        await client.quiet()


async def test_history_request_has_two_spellings(server: RunningServer) -> None:
    await publish(server, "spelling", "one")
    for spelling in ("command", "type"):
        async with cable(server) as client:
            await client.subscribe("spelling")
            await client.send(**{spelling: "history"}, identifier=identifier("spelling"), history={"since": 1})
            assert [frame["message"] for frame in await client.messages_until("confirm_history")] == ["one"]


async def test_retried_publication_keeps_its_position_and_is_delivered_once(server: RunningServer) -> None:
    batch = [{"stream": "retried", "data": "1"}, {"stream": "retried", "data": "2"}]
    async with cable(server) as client, aiohttp.ClientSession(headers={"Idempotency-Key": "order-17"}) as http:
        await client.subscribe("retried")
        answers = []
        for path in ("/_broadcast", "/api/publish"):
            async with http.post(server.url + path, json=batch) as response:
                assert response.status == 201
                answers.append((await response.json())["publications"])
        assert [item["offset"] for item in answers[0]] == [1, 2]
        assert answers[1] == [{**item, "duplicate": True} for item in answers[0]]
        assert await client.messages(2) == [1, 2]
        await client.quiet()


# --- presence ---------------------------------------------------------------------------------------------------------


async def test_member_that_returns_in_time_does_not_leave(worker_flags: tuple[str, ...]) -> None:
    for seconds in GROWING_SECONDS:
        with running_server("--public", "--presence_ttl", f"{seconds}s", *worker_flags) as server:
            if await member_stays(server, seconds):
                return
    pytest.fail("no client could return within the TTL")


async def member_stays(server: RunningServer, seconds: int) -> bool:
    """False if the member returned too late, after so many seconds."""
    async with cable(server) as watcher, cable(server) as steady, cable(server) as lost:
        await watcher.subscribe("lobby")
        for client, name in ((steady, "steady"), (lost, "lost")):
            await client.send(command="subscribe", identifier=identifier("lobby"), presence={"id": name, "info": {"as": name}})
            event = await watcher.expect("presence")
            assert event["message"] == {"type": "join", "id": name, "info": {"as": name}}
        begun = time.monotonic()
        await steady.cut()
        await lost.cut()  # its grace ends no sooner than that of the other
        async with cable(server, sid=steady.sid):
            if time.monotonic() - begun >= seconds:
                return False
            assert (await watcher.expect("presence"))["message"] == {"type": "leave", "id": "lost"}
            await watcher.quiet()
            await watcher.send(command="presence", identifier=identifier("lobby"))
            listed = (await watcher.expect("presence"))["message"]
            assert listed == {"type": "info", "total": 1, "records": [{"id": "steady", "info": {"as": "steady"}}]}
    return True


# --- tokens -----------------------------------------------------------------------------------------------------------


async def test_expired_token_ends_live_and_restored_sessions(server_with: ServerWith, worker_flags: tuple[str, ...]) -> None:
    guarded = server_with("--secret", SECRET, "--public_streams", *worker_flags)
    params = {"jid": token(expires_in=SHORT_LIFE)}
    async with cable(guarded, params=params) as live, cable(guarded, params=params) as lost:
        for client in (live, lost):
            await client.subscribe("secret")
        await publish(guarded, "secret", "one", key=BROADCAST_KEY)
        for client in (live, lost):
            await client.messages(1)
        await lost.cut()
        async with cable(guarded, sid=lost.sid, params=params) as restored:
            assert await restored.ask_history("secret", lost.positions["secret"]) == []
            for client in (live, restored):
                goodbye = await client.until("disconnect")
                assert (goodbye["reason"], goodbye["reconnect"]) == ("token_expired", False)
                assert (await client.closed())[0] == 1000
        async with cable(guarded, welcome=False, sid=restored.sid, params=params) as late:
            assert (await late.expect("disconnect"))["reason"] == "token_expired"
    await metrics_when(guarded, lambda now: now["sessions"] == 0)


# --- size of a session ------------------------------------------------------------------------------------------------


async def test_session_over_the_size_limit_is_not_kept_and_counted(server: RunningServer) -> None:
    before = (await metrics(server))["refusals_total{session_size}"]
    for streams, restored in ((1, True), (40, False)):
        async with cable(server) as client:
            for number in range(streams):
                await client.subscribe(f"a stream with a rather long name so that it takes some bytes/{number}")
            await client.cut()
            async with cable(server, welcome=False, sid=client.sid) as back:
                assert (await back.expect("welcome")).get("restored", False) is restored
    await metrics_when(server, lambda now: now["refusals_total{session_size}"] == before + 1)
