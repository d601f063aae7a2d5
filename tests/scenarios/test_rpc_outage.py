"""The application ends or hangs while many clients are connected: they stay connected, and every command is answered."""

import asyncio
import time
from collections import Counter

import pytest

from ropewalk.testing.application_orders import NAME, SLOW, seat
from tests.cable import BASE, Cable, cable
from tests.cable import kind as kind_of
from tests.metrics import metrics, metrics_when
from tests.scenarios.rpc_outage import LISTENING, OWN, STREAM, Deployment, Guest, answers, deployment
from tests.waiting import SECONDS, healthy, until

pytestmark = pytest.mark.tier("all")

CLIENTS = 150
ASKING = 100  # of them; the others send no command for the application
HANGING = 50
MESSAGES = 20  # published during the outage
LEAVERS = 10
WANTED = seat(number=1)
STORM = 40

QUICK = ("--rpc_command_timeout", "1000")
PATIENT = ("--rpc_command_timeout", "600000")


async def served(bystanders: list[Guest]) -> None:
    """They get what does not need the application."""
    for guest in bystanders:
        await guest.ask(OWN)
        await guest.cable.send(command="ping")
    assert await answers(bystanders, OWN) == {"confirm_subscription": len(bystanders)}
    await until(lambda: all(guest.pongs for guest in bystanders))


async def returned(here: Deployment, guest: Guest) -> None:
    """A lost session is restored with its missed messages, without the application."""
    await guest.cable.cut()
    here.guests.remove(guest)
    missed = await here.publish(1)
    async with cable(here.server, sid=guest.cable.sid) as back:
        position = guest.cable.positions[STREAM]
        await back.send(command="history", identifier=LISTENING, history={"streams": {STREAM: position}})
        assert [frame["message"] for frame in await back.messages_until("confirm_history")] == missed


async def arrived(here: Deployment) -> list[Cable]:
    """More clients, whose sessions end with their connections."""
    more = [await Cable.connect(here.server.cable, protocol=BASE, params={NAME: "leaver"}) for _ in range(LEAVERS)]
    for each in more:
        await each.welcomed()
    return more


async def without_application(here: Deployment, leavers: list[Cable]) -> tuple[Counter[str], int]:
    """Everything during the outage; returns the answers to subscribes, and the number of delivered messages."""
    asking, bystanders = here.guests[:ASKING], here.guests[ASKING:]
    for guest in asking:
        await guest.ask(WANTED)
    await served(bystanders)
    delivered = await here.received_by_all(await here.publish(MESSAGES))
    found = await answers(asking, WANTED)
    async with cable(here.server, welcome=False, params={NAME: "newcomer"}) as newcomer:
        assert await newcomer.closed() == (1011, "Auth Error")
    for leaver in leavers:
        await leaver.close()
    await metrics_when(here.server, lambda now: now["sessions"] == CLIENTS)
    await returned(here, bystanders[-1])
    return found, delivered


async def with_application_again(here: Deployment) -> tuple[float, int]:
    """Seconds until the first subscribe is confirmed, and the number of rejected ones until all are."""
    since = time.monotonic()
    rejected = await here.guests[0].ask_until_granted(WANTED)
    seconds = time.monotonic() - since
    return seconds, rejected + sum(await asyncio.gather(*(guest.ask_until_granted(WANTED) for guest in here.guests[1:ASKING])))


@pytest.mark.parametrize("how", ["killed", "held"])
@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_clients_stay_connected_during_an_outage(kind: str, how: str) -> None:
    async with deployment(kind, CLIENTS, *QUICK) as here:
        leavers = await arrived(here)
        await here.received_by_all(await here.publish(1))
        assert await here.health() == (200, [])
        before = await metrics(here.server)

        (here.backend.kill if how == "killed" else here.backend.hold)()
        found, delivered = await without_application(here, leavers)
        assert found == {"reject_subscription": ASKING}
        assert await here.health() == (503, ["the application does not respond"])
        during = await metrics(here.server)
        assert during["app_calls_failed_total"] - before["app_calls_failed_total"] >= ASKING

        (here.backend.restart if how == "killed" else here.backend.go_on)()
        restarted = await metrics(here.server)
        seconds, rejected = await with_application_again(here)
        await healthy(here.server)
        await here.received_by_all(await here.publish(1))
        sids = {leaver.sid for leaver in leavers}
        await until(lambda: sids <= here.disconnect_calls().keys())
        after = await metrics(here.server)
        if how == "killed":  # a held one may get a call twice that it did not answer in time; so may a slow one
            unanswered = after["app_calls_failed_total"] - restarted["app_calls_failed_total"]
            assert sum(here.disconnect_calls()[sid] - 1 for sid in sids) <= unanswered
        assert [guest for guest in here.guests if guest.closed] == []
        assert after["app_disconnects_dropped_total"] == 0
        print(f"\n{kind} application {how} under {CLIENTS} clients, none disconnected")
        print(f"  meanwhile: {found.total()} subscribes rejected, {delivered} messages delivered, health 503")
        print(f"  once it is back: the first subscribe granted after {seconds:.2f} s, {rejected} rejected until all were")
        counted = ("app_calls", "app_calls_failed", "app_calls_retried")
        print("  as the server counted it:", {name: int(after[f"{name}_total"]) for name in counted})


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_hanging_application_does_not_delay_other_clients(kind: str) -> None:
    async with deployment(kind, CLIENTS, *PATIENT) as here:
        await here.received_by_all(await here.publish(1))
        here.backend.hold()
        asking, bystanders = here.guests[:HANGING], here.guests[HANGING:]
        for guest in asking:
            await guest.ask(WANTED)
        hanging = await metrics_when(here.server, lambda now: now["app_calls_active"] + now["app_calls_waiting"] == HANGING)
        await served(bystanders)
        delivered = await here.received_by_all(await here.publish(MESSAGES))
        assert [guest for guest in asking if guest.replies[WANTED]] == []
        here.backend.go_on()
        assert await answers(asking, WANTED) == {"confirm_subscription": HANGING}
        active, waiting = int(hanging["app_calls_active"]), int(hanging["app_calls_waiting"])
        print(f"\n{kind} application hangs in {active} calls, {waiting} wait for their turn.")
        print(f"  meanwhile: {len(bystanders)} other subscribes granted, {delivered} messages delivered")


@pytest.mark.parametrize("kind", ["grpc", "http"])
async def test_all_of_many_connections_are_accepted_by_a_slow_application(kind: str) -> None:
    """Until the last of them is called takes several times the timeout of one call. On a slow machine a call may time out, so
    there is another attempt with a longer timeout and as many more clients."""
    for seconds in (1, 5):
        if await storm_is_accepted(kind, seconds):
            return
    pytest.fail("calls failed")


async def storm_is_accepted(kind: str, seconds: int) -> bool:
    """Returns whether no call failed. `seconds`: the timeout of one call."""
    flags = ("--rpc_concurrency", "4", "--rpc_command_timeout", str(1000 * seconds))
    async with deployment(kind, 1, *flags) as here:

        async def arrive(number: int) -> None:
            async with cable(here.server, welcome=False, params={NAME: f"guest {number}", SLOW: "1"}) as client:
                welcomed.append(kind_of(await client.next()) == "welcome")

        welcomed: list[bool] = []
        await asyncio.gather(*(arrive(number) for number in range(STORM * seconds)))
        counted = await metrics(here.server)
        if counted["app_calls_failed_total"] or counted["app_calls_retried_total"]:
            return False
        assert all(welcomed)
        assert await here.health() == (200, [])
    return True


async def test_session_is_restored_while_the_application_hangs() -> None:
    async with deployment("grpc", 1, *PATIENT) as here:
        await here.received_by_all(await here.publish(1))
        here.backend.hold()
        async with asyncio.timeout(SECONDS):
            await returned(here, here.guests[0])
        here.server.kill()  # it would wait for the application


async def test_calls_in_progress_are_retried_after_a_restart() -> None:
    async with deployment("grpc", HANGING, *PATIENT) as here:
        here.backend.hold()
        for guest in here.guests:
            await guest.ask(WANTED)
        await metrics_when(here.server, lambda now: now["app_calls_active"] + now["app_calls_waiting"] == HANGING)
        here.backend.kill()
        here.backend.restart()
        assert await answers(here.guests, WANTED) == {"confirm_subscription": HANGING}


async def test_circuit_opens_when_nearly_all_http_calls_fail() -> None:
    async with deployment("http", 10, *QUICK) as here:
        here.backend.kill()
        number = 1
        while not (await metrics(here.server))["app_circuit_open"]:
            number += 1
            for guest in here.guests:
                await guest.ask(seat(number=number))
            assert await answers(here.guests, seat(number=number)) == {"reject_subscription": 10}
        here.backend.restart()
        await asyncio.gather(*(guest.ask_until_granted(WANTED) for guest in here.guests))
        await metrics_when(here.server, lambda now: now["app_circuit_open"] == 0)
        await healthy(here.server)


@pytest.mark.parametrize("how", ["killed", "held"])
async def test_shutdown_does_not_wait_for_a_failed_application(how: str) -> None:
    async with deployment("grpc", CLIENTS, *QUICK, "--shutdown_timeout", "10m") as here:
        (here.backend.kill if how == "killed" else here.backend.hold)()
        here.server.process.terminate()
        assert await asyncio.to_thread(here.server.process.wait, SECONDS) == 0
        await until(lambda: all(guest.closed for guest in here.guests))
        assert all(guest.reason == "server_restart" for guest in here.guests)
