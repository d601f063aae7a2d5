"""History limits, global and by the stream rules of the settings file, and the answers to requests beyond them."""

import json
from collections.abc import Iterator

import pytest

from tests.cable import Cable, Frame, cable, identifier
from tests.server import RunningServer, publish, running_server

RULES = """
[broker]
history_limit = 4

[[streams]]
pattern = "short/*"
history_limit = 2

[[streams]]
pattern = "none/*"
history_limit = 0

[[streams]]
pattern = "brief/*"
history_ttl = "1s"
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    file = tmp_path_factory.mktemp("settings") / "ropewalk.toml"
    file.write_text(RULES)
    with running_server("--public", "--ping_interval", "500ms", "--config_path", str(file)) as running:
        yield running


async def five(server: RunningServer, stream: str) -> list[Frame]:
    """Publish 1 to 5; returns their positions."""
    return [await publish(server, stream, json.dumps(number)) for number in range(1, 6)]


async def answer(client: Cable, stream: str, position: Frame) -> list[int] | Frame:
    """Offsets that a history request returns, or the gap that it reports."""
    asked = {"epoch": position["epoch"], "offset": position["offset"]}
    await client.send(command="history", identifier=identifier(stream), history={"streams": {stream: asked}})
    offsets: list[int] = []
    while (frame := await client.next()).get("type") not in ("confirm_history", "reject_history"):
        offsets.append(frame["offset"])
    gap: Frame | None = frame.get("streams", {}).get(stream)
    return offsets if gap is None else gap


async def test_history_request_returns_the_kept_messages_or_reports_the_trimmed_ones(server: RunningServer) -> None:
    for stream, kept in (("plain/1", 4), ("short/1", 2)):
        positions = await five(server, stream)
        oldest = 6 - kept
        for position in positions:
            async with cable(server) as client:
                await client.subscribe(stream)
                found = await answer(client, stream, position)
            if position["offset"] < oldest - 1:
                assert found == {"reason": "trimmed", "epoch": position["epoch"], "oldest": oldest, "tip": 5}
            else:
                assert found == list(range(position["offset"] + 1, 6))


async def test_stream_without_history_is_ephemeral(server: RunningServer) -> None:
    async with cable(server) as client:
        await client.subscribe("none/1")
        assert await five(server, "none/1") == [{"stream": "none/1"}] * 5
        frames = [await client.next() for _ in range(5)]
        assert [(frame["message"], "offset" in frame, "epoch" in frame) for frame in frames] == [
            (number, False, False) for number in range(1, 6)
        ]
        gap = await answer(client, "none/1", {"epoch": "past", "offset": 3})
        assert gap == {"reason": "epoch_changed", "epoch": "", "oldest": 1, "tip": 0}
    async with cable(server) as client:
        assert await client.subscribe("none/1", history={"since": 1}) == []


async def test_request_by_time_returns_the_kept_messages(server: RunningServer) -> None:
    await five(server, "short/since")
    async with cable(server) as client:
        assert [frame["message"] for frame in await client.subscribe("short/since", history={"since": 1})] == [4, 5]


async def test_position_beyond_the_tip_is_reported_as_ahead(server: RunningServer) -> None:
    *_, last = await five(server, "plain/ahead")
    async with cable(server) as client:
        await client.subscribe("plain/ahead")
        gap = await answer(client, "plain/ahead", {**last, "offset": 6})
        assert gap == {"reason": "ahead", "epoch": last["epoch"], "oldest": 2, "tip": 5}


async def test_tip_is_no_gap_after_the_history_has_expired(server: RunningServer) -> None:
    first, *_, last = await five(server, "brief/1")
    async with cable(server) as client:
        await client.subscribe("brief/1")
        while isinstance(await answer(client, "brief/1", first), list):
            await client.until("ping")  # nothing else comes; the history goes with time
        assert await answer(client, "brief/1", last) == []
        following = await publish(server, "brief/1", "6")
        assert (following["epoch"], following["offset"]) == (last["epoch"], 6)


async def test_excluded_client_does_not_get_its_message_from_history(server: RunningServer) -> None:
    async with cable(server) as author:
        await author.subscribe("plain/own")
        await publish(server, "plain/own", "1", meta={"exclude_socket": author.sid, "broadcast_type": "edit"})
        await publish(server, "plain/own", "2")
        assert await author.messages(1) == [2]
        await author.cut()
        async with cable(server, sid=author.sid) as back:  # under a new sid, but still the same client
            replay = await back.ask_history("plain/own", {"epoch": "", "offset": 0})
            assert [frame["message"] for frame in replay] == [2]
    async with cable(server) as reader:
        await reader.send(command="subscribe", identifier=identifier("plain/own"), history={"since": 1})
        await reader.expect("confirm_subscription")
        await reader.expect("edit", message=1, offset=1)
        await reader.expect("message", message=2, offset=2)
        await reader.expect("confirm_history")
