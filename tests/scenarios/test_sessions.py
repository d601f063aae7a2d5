"""A session outlives its connections: what it may take back, how often, and what ends it for good."""

from collections.abc import Iterator

import aiohttp
import pytest

from tests.cable import BASE, EXTENDED, Cable, cable, identifier
from tests.clients.credentials import BROADCAST_KEY, SECRET, SHORT_LIFE, token
from tests.metrics import metrics_when
from tests.server import RunningServer, publish, running_server

pytestmark = pytest.mark.usefixtures("processes")


@pytest.fixture(scope="module")
def server(processes: None) -> Iterator[RunningServer]:
    with running_server("--public", "--presence_ttl", "4s", "--resume_patience", "30s") as running:
        yield running
        assert "Traceback" not in running.log(), running.log()


# --- what is told of positions ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [BASE, EXTENDED])
async def test_only_those_who_ask_are_told_the_positions_of_their_streams(server: RunningServer, protocol: str) -> None:
    position = await publish(server, f"told/{protocol}", "one")
    wanted = identifier(f"told/{protocol}")
    tips = {f"told/{protocol}": {"epoch": position["epoch"], "tip": 1}}
    for params, more in (({}, {}), ({"positions": "0"}, {}), ({"positions": "1"}, {"streams": tips})):
        async with cable(server, protocol=protocol, params=params) as client:
            await client.send(command="subscribe", identifier=wanted)
            assert await client.next() == {"type": "confirm_subscription", "identifier": wanted, **more}


# --- restoring --------------------------------------------------------------------------------------------------------


async def test_a_lost_session_comes_back_with_its_subscriptions_and_misses_nothing(server: RunningServer) -> None:
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
        await publish(server, "restore", "three")  # held until the history before it is asked for
        missed = await back.ask_history("restore", client.positions["restore"])
        assert [frame["message"] for frame in missed] == ["two", "three"]
        await publish(server, "restore", "four")
        assert await back.messages(1) == ["four"]
        await back.close()


async def test_a_sid_is_good_for_one_return(server: RunningServer) -> None:
    async with cable(server) as client:
        await client.cut()
        async with cable(server, sid=client.sid), cable(server, welcome=False, sid=client.sid) as second:
            await second.welcomed(restored=False)


@pytest.mark.parametrize("sid", ["nobody", "", "x" * 2000, "../../etc/passwd"])
async def test_a_sid_nobody_knows_begins_a_new_session(server: RunningServer, sid: str) -> None:
    async with cable(server, welcome=False, params={"sid": sid}) as client:
        welcome = await client.welcomed(restored=False)
        assert welcome["sid"] not in ("", sid)


async def test_a_base_protocol_session_is_not_restored(server: RunningServer) -> None:
    async with cable(server, protocol=BASE) as client:
        await client.cut()
        async with cable(server, welcome=False, protocol=BASE, sid=client.sid) as second:
            await second.welcomed(restored=False)


async def test_a_client_that_returns_before_its_loss_is_noticed_takes_the_session_over(server: RunningServer) -> None:
    async with cable(server) as first:
        await first.subscribe("takeover")
        async with cable(server, sid=first.sid) as second:
            assert await first.closed() == (1000, "Session resumed elsewhere")
            assert await second.ask_history("takeover") == []
            await publish(server, "takeover", "hello")
            assert await second.messages(1) == ["hello"]


async def test_a_restored_session_that_asks_for_no_history_gets_what_was_held_and_is_told_of_the_gap(processes: str) -> None:
    with running_server("--public", "--resume_patience", "500ms") as hasty:
        async with cable(hasty) as client:
            await client.subscribe("news")
            await publish(hasty, "news", "one")
            await client.messages(1)
            await client.cut()
        await publish(hasty, "news", "missed")
        async with cable(hasty, sid=client.sid) as back:
            await publish(hasty, "news", "held")
            first = await back.next()
            # What comes before a worker hears of the stream is no longer live for it, and so belongs to the gap.
            held = ["held"] if first.get("message") == "held" else []
            assert held or processes == "workers"
            gap = await back.expect("reject_history", reason="unclaimed") if held else first
            assert gap["reason"] == "unclaimed"
            assert {"oldest": 1, "tip": 3}.items() <= gap["streams"]["news"].items()
            await publish(hasty, "news", "live")
            assert await back.messages(1) == ["live"]
            late = await back.ask_history("news", client.positions["news"])
            assert [frame["message"] for frame in late] + held == ["missed", "held"]


async def test_after_a_restart_without_a_journal_the_past_is_said_to_be_lost() -> None:
    with running_server("--public") as before:
        async with cable(before) as client:
            await client.subscribe("news")
            await publish(before, "news", "old")
            await client.messages(1)
            before.kill()
    with running_server("--public") as after:
        for tip in (0, 1):  # while the stream is not known again, and once it is
            async with cable(after, welcome=False, sid=client.sid) as back:
                await back.welcomed(restored=False)
                await back.send(command="subscribe", identifier=identifier("news"), history={"streams": client.positions})
                await back.expect("confirm_subscription")
                gap = await back.expect("reject_history", reason="epoch_changed")
                assert gap["streams"]["news"]["tip"] == tip
                assert gap["streams"]["news"]["epoch"] != client.positions["news"]["epoch"]
            await publish(after, "news", "new")


# --- asking twice, and in other words ------------------------------------------------------------------------------------


async def test_a_repeated_subscribe_is_confirmed_again_and_delivers_once(server: RunningServer) -> None:
    async with cable(server) as client:
        await client.subscribe("twice")
        await client.subscribe("twice")
        await publish(server, "twice", "one")
        assert await client.messages(1) == ["one"]
        assert await client.subscribe("twice", history={"since": 1}) == []  # it has it already
        await client.quiet()


@pytest.mark.parametrize("spelling", [{"command": "history"}, {"type": "history"}])
async def test_history_is_understood_in_both_spellings(server: RunningServer, spelling: dict[str, str]) -> None:
    stream = f"spelling/{next(iter(spelling))}"
    await publish(server, stream, "one")
    async with cable(server) as client:
        await client.subscribe(stream)
        await client.send(**spelling, identifier=identifier(stream), history={"since": 1})
        assert [frame["message"] for frame in await client.messages_until("confirm_history")] == ["one"]


async def test_a_retried_publication_keeps_its_first_position_and_is_delivered_once(server: RunningServer) -> None:
    batch = [{"stream": "retried", "data": "1"}, {"stream": "retried", "data": "2"}]
    async with cable(server) as client, aiohttp.ClientSession(headers={"Idempotency-Key": "order-17"}) as http:
        await client.subscribe("retried")
        answers = []
        for path in ("/_broadcast", "/api/publish"):  # by whichever endpoint
            async with http.post(server.url + path, json=batch) as response:
                assert response.status == 201
                answers.append((await response.json())["publications"])
        assert [item["offset"] for item in answers[0]] == [1, 2]
        assert answers[1] == [{**item, "duplicate": True} for item in answers[0]]
        assert await client.messages(2) == [1, 2]
        await client.quiet()


# --- presence ---------------------------------------------------------------------------------------------------------


async def test_a_member_who_returns_in_time_never_left_and_one_who_does_not_leaves(server: RunningServer) -> None:
    async with cable(server) as watcher, cable(server) as steady, cable(server) as lost:
        await watcher.subscribe("lobby")
        for client, name in ((steady, "steady"), (lost, "lost")):
            await client.send(command="subscribe", identifier=identifier("lobby"), presence={"id": name, "info": {"as": name}})
            event = await watcher.expect("presence")
            assert event["message"] == {"type": "join", "id": name, "info": {"as": name}}
        await steady.cut()
        await lost.cut()  # its grace ends no sooner than that of the other
        async with cable(server, sid=steady.sid):
            assert (await watcher.expect("presence"))["message"] == {"type": "leave", "id": "lost"}
            await watcher.quiet()
            await watcher.send(command="presence", identifier=identifier("lobby"))
            listed = (await watcher.expect("presence"))["message"]
            assert listed == {"type": "info", "total": 1, "records": [{"id": "steady", "info": {"as": "steady"}}]}


# --- tokens -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def guarded(processes: None) -> Iterator[RunningServer]:
    with running_server("--secret", SECRET, "--public_streams") as running:
        yield running


async def test_a_token_that_ends_takes_the_live_connection_with_it(guarded: RunningServer) -> None:
    async with cable(guarded, params={"jid": token(expires_in=SHORT_LIFE)}) as client:
        await client.subscribe("secret")
        goodbye = await client.until("disconnect")
        assert (goodbye["reason"], goodbye["reconnect"]) == ("token_expired", False)
        assert (await client.closed())[0] == 1000
        await metrics_when(guarded, lambda now: now["sessions"] == 0)


async def test_a_restored_session_still_ends_with_its_token(guarded: RunningServer) -> None:
    params = {"jid": token(expires_in=SHORT_LIFE)}
    async with cable(guarded, params=params) as client:
        await client.subscribe("secret")
        await publish(guarded, "secret", "one", key=BROADCAST_KEY)
        await client.messages(1)
        await client.cut()
        async with cable(guarded, sid=client.sid, params=params) as back:
            assert await back.ask_history("secret", client.positions["secret"]) == []
            assert (await back.until("disconnect"))["reason"] == "token_expired"
        async with cable(guarded, welcome=False, sid=back.sid, params=params) as late:
            assert (await late.expect("disconnect"))["reason"] == "token_expired"


# --- what may be kept -------------------------------------------------------------------------------------------------


async def test_a_session_larger_than_may_be_kept_is_not_kept_and_counted() -> None:
    with running_server("--public", "--max_session_size", "2KiB") as small:
        for streams, restored in ((1, True), (40, False)):
            async with cable(small) as client:
                for number in range(streams):
                    await client.subscribe(f"a stream with a rather long name so that it takes some bytes/{number}")
                await client.cut()
                async with cable(small, welcome=False, sid=client.sid) as back:
                    assert (await back.expect("welcome")).get("restored", False) is restored
        await metrics_when(small, lambda now: now["refusals_total{session_size}"] == 1)
