"""What the server keeps for the application outlives the server: with a journal a session comes back after a crash."""

from pathlib import Path

from tests.conformance.applications.orders import WELCOME_BACK, Order, call, seat
from tests.conformance.applications.resuming import subscribed
from tests.conformance.applications.stage import RESTORE, Stage, application, running_stage
from tests.server import publish


class Crashing:
    kind: str

    async def test_a_session_comes_back_with_its_state_after_a_crash_of_the_server(self, tmp_path: Path) -> None:
        wanted = seat(Order(streams=("lasting",), keep={"room": "1", "old": "x"}, remember={"lang": "de"}))
        log, flags = tmp_path / "events.jsonl", ("--data_dir", str(tmp_path / "journal"), RESTORE)
        with application(self.kind, log) as named:
            with running_stage(self.kind, log, *named, *flags) as before:
                async with before.client() as client:
                    await subscribed(client, wanted)
                    await client.send(command="message", identifier=wanted, data=call(Order(keep={"room": "2", "old": ""})))
                    await client.quiet()
                    await publish(before.server, "lasting", '"seen"')  # and what was noted before it is on disk
                    await client.messages(1)
                    before.server.kill()
            with running_stage(self.kind, log, *named, *flags) as after:
                await self._returns(after, client.sid, wanted, client.positions)

    async def _returns(self, stage: Stage, sid: str, wanted: str, positions: dict[str, dict[str, object]]) -> None:
        await publish(stage.server, "lasting", '"missed"')
        async with stage.client(sid=sid) as back:
            assert await back.messages(1) == [WELCOME_BACK]
            await back.send(command="history", identifier=wanted, history={"streams": positions})
            assert await back.messages(1) == ["missed"]
            told = await stage.heard(back.sid, "restored")
            assert told.subscriptions == {wanted: {"room": "2"}}
            assert told.state == {"entered": "yes", "lang": "de"}
            assert await stage.dismiss('{"user":"ann"}') == 1
            await stage.heard(back.sid, "disconnect")
        assert stage.story(sid, back.sid) == ["connect", "subscribe", "message", "restored", "disconnect"]
