"""With a journal, sessions and their application state survive a crash or a restart of the server."""

from pathlib import Path

from ropewalk.testing.application_orders import WELCOME_BACK, Order, call, seat
from tests.cable import BASE
from tests.conformance.applications.restores import subscribed
from tests.conformance.applications.stage import RESTORE, Stage, application, running_stage
from tests.metrics import metrics_when
from tests.server import publish


class Crashing:
    kind: str
    flags: tuple[str, ...] = ()

    async def test_crash_keeps_sessions_with_their_state_and_remote_disconnects(self, tmp_path: Path) -> None:
        wanted = seat(Order(streams=("lasting",), keep={"room": "1", "old": "x"}, remember={"lang": "de"}))
        log, flags = tmp_path / "events.jsonl", ("--data_dir", str(tmp_path / "journal"), RESTORE)
        with application(self.kind, log) as named:
            with running_stage(self.kind, log, *named, *self.flags, *flags) as before:
                async with before.client(user="banned") as banned:
                    await subscribed(banned, seat())
                    await banned.cut()
                    await metrics_when(before.server, lambda now: now["sessions_kept"] == 1)
                    assert await before.dismiss('{"user":"banned"}') == 1
                async with before.client() as client, before.client(user="base", protocol=BASE) as not_resumable:
                    await subscribed(client, wanted)
                    await client.send(command="message", identifier=wanted, data=call(Order(keep={"room": "2", "old": ""})))
                    await client.quiet()
                    await publish(before.server, "lasting", '"seen"')  # the journal has all earlier rows by then
                    await client.messages(1)
                    before.server.kill()
            with running_stage(self.kind, log, *named, *self.flags, *flags) as after:
                await self._resume(after, client.sid, wanted, client.positions)
                async with after.client(user="banned", sid=banned.sid, welcome=False) as back:
                    await back.welcomed(restored=False)
                await after.heard(banned.sid, "disconnect")
                await after.heard(not_resumable.sid, "disconnect")
                assert "restored" not in after.story(banned.sid, back.sid)

    async def test_action_that_ends_during_the_shutdown_takes_effect(self, tmp_path: Path) -> None:
        log, flags = tmp_path / "events.jsonl", ("--data_dir", str(tmp_path / "journal"))
        orders = (Order(slow=True, remember={"late": "yes"}), Order(slow=True, remember={"banned": "yes"}, disconnect=True))
        with application(self.kind, log) as named:
            with running_stage(self.kind, log, *named, *self.flags, *flags) as before:
                async with before.client(user="kept") as kept, before.client(user="banned") as banned:
                    for client, order in zip((kept, banned), orders, strict=True):
                        await subscribed(client, seat())
                        await client.send(command="message", identifier=seat(), data=call(order))
                    for client in (kept, banned):
                        await before.heard(client.sid, "message")
                    assert before.server.stop() == 0
                assert before.story(kept.sid) == ["connect", "subscribe", "message"]
                assert before.story(banned.sid) == ["connect", "subscribe", "message", "disconnect"]
            with running_stage(self.kind, log, *named, *self.flags, *flags, "--sessions_ttl", "1s") as after:
                async with after.client(user="banned", sid=banned.sid, welcome=False) as back:
                    await back.welcomed(restored=False)
                disconnect_call = await after.heard(kept.sid, "disconnect")
                assert disconnect_call.state == {"entered": "yes", "late": "yes"}
                assert after.story(kept.sid).count("disconnect") == after.story(banned.sid).count("disconnect") == 1

    async def _resume(self, stage: Stage, sid: str, wanted: str, positions: dict[str, dict[str, object]]) -> None:
        await publish(stage.server, "lasting", '"missed"')
        async with stage.client(sid=sid) as back:
            assert await back.messages(1) == [WELCOME_BACK]
            await back.send(command="history", identifier=wanted, history={"streams": positions})
            assert await back.messages(1) == ["missed"]
            event = await stage.heard(back.sid, "restored")
            assert event.subscriptions == {wanted: {"room": "2"}}
            assert event.state == {"entered": "yes", "lang": "de"}
            assert await stage.dismiss('{"user":"ann"}') == 1
            await stage.heard(back.sid, "disconnect")
        assert stage.story(sid, back.sid) == ["connect", "subscribe", "message", "restored", "disconnect"]
