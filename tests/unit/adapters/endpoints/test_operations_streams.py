"""The REST endpoint over a real socket and the memory backend."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import quote

import pytest

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.operations import RestEndpoint
from ropewalk.core.rules import Rulebook
from ropewalk.model.messages import Publication
from ropewalk.model.presence import Member
from ropewalk.model.rules import StreamRules
from tests.unit.adapters.http_server import Client, serving


@pytest.fixture
def backend() -> MemoryBackend:
    return MemoryBackend(Rulebook(StreamRules(history_limit=5)), lambda: 100.0, new_epoch=lambda: "e1")


@pytest.fixture
async def client(backend: MemoryBackend) -> AsyncIterator[Client]:
    async with serving(RestEndpoint(backend, KeyGuard("", Counter())).routes()) as client:
        yield client


async def get(client: Client, path: str, status: int = 200) -> dict[str, object]:
    async with client.get(path) as response:
        assert response.status == status, await response.text()
        answer: dict[str, object] = await response.json()
        return answer


async def get_raw(client: Client, target: str) -> bytes:
    """Sends the path as it is: no client library normalizes it."""
    reader, writer = await asyncio.open_connection(client.host, client.port)
    writer.write(b"GET %b HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n" % target.encode("latin-1"))
    answer = await reader.read()
    writer.close()
    return answer


# --- Streams ---------------------------------------------------------------------------------------------------------


async def test_streams_are_listed_by_name_in_pages(client: Client, backend: MemoryBackend) -> None:
    await backend.streams.append([Publication(name, b"1") for name in ("c", "a", "b/1", "b/2")])
    first = await get(client, "/api/streams?limit=2")
    summary = {"epoch": "e1", "tip": 1, "oldest": 1, "kept": 1}
    assert first == {"streams": [{"stream": "a", **summary}, {"stream": "b/1", **summary}], "next": "b/1"}
    rest = await get(client, "/api/streams?limit=2&after=b%2F1")
    assert rest == {"streams": [{"stream": "b/2", **summary}, {"stream": "c", **summary}], "next": None}


async def test_streams_are_listed_by_prefix(client: Client, backend: MemoryBackend, subtests: pytest.Subtests) -> None:
    names = ["a", "b", "b/", "b/1", "b/2", "b/3", "b0", "bb", "c", "\0", "\0x", "\ue000", "b.\U0010ffffx", "\ud7ff\U0010ffffx"]
    await backend.streams.append([Publication(name, b"1") for name in names])
    for prefix in ["b/", "b", "", "x", "\0", "\ue000", "b/1"]:
        with subtests.test(prefix=prefix):
            for limit in (1, 2, 100):
                found = list[str]()
                after: str | None = ""
                while after is not None:
                    page: Any = await get(client, f"/api/streams?prefix={quote(prefix)}&limit={limit}&after={quote(after)}")
                    found += [each["stream"] for each in page["streams"]]
                    after = page["next"]
                assert found == sorted(name for name in names if name.startswith(prefix))


async def test_list_of_streams_may_be_empty(client: Client) -> None:
    assert await get(client, "/api/streams") == {"streams": [], "next": None}


# --- History ---------------------------------------------------------------------------------------------------------


async def test_history_is_read_in_pages_with_exact_numbers(client: Client, backend: MemoryBackend) -> None:
    big = b'{"n":12345678901234567890}'
    await backend.streams.append([Publication("chat", big), Publication("chat", b'"x"', broadcast_type="alert")])
    await backend.streams.append([Publication("chat", b"3", exclude_socket="secret-sid")])
    first = await get(client, "/api/streams/chat/history?limit=2")
    assert first["messages"] == [
        {"offset": 1, "timestamp": 100.0, "message": {"n": 12345678901234567890}},
        {"offset": 2, "timestamp": 100.0, "message": "x", "type": "alert"},
    ]
    assert {name: first[name] for name in ("stream", "epoch", "tip", "oldest", "next")} == {
        "stream": "chat",
        "epoch": "e1",
        "tip": 3,
        "oldest": 1,
        "next": 2,
    }
    last = await get(client, "/api/streams/chat/history?limit=2&after=2")
    assert last["messages"] == [{"offset": 3, "timestamp": 100.0, "message": 3}]
    assert last["next"] is None


async def test_history_has_the_oldest_offset_and_the_tip(client: Client, backend: MemoryBackend) -> None:
    await backend.streams.append([Publication("chat", b"%d" % number) for number in range(8)])
    answer = await get(client, "/api/streams/chat/history")
    assert (answer["oldest"], answer["tip"]) == (4, 8)


async def test_stream_may_have_any_name(client: Client, backend: MemoryBackend, subtests: pytest.Subtests) -> None:
    for name in ["chat/1", "a/history", "history", "/edge/", "50%", "a%2Fb", "é ü", "?&=#", "a+b", "{x}", "two\nlines", "\n"]:
        with subtests.test(name=name):
            await backend.streams.append([Publication(name, b"1")])
            answer = await get_raw(client, f"/api/streams/{quote(name, safe='')}/history")
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert b'"messages":[{"offset":1' in answer


async def test_slashes_need_not_be_encoded(client: Client, backend: MemoryBackend) -> None:
    await backend.streams.append([Publication("chat/room/1", b"1")])
    assert (await get(client, "/api/streams/chat/room/1/history"))["stream"] == "chat/room/1"


async def test_unknown_stream_is_answered_with_404(client: Client) -> None:
    assert await get(client, "/api/streams/unknown/history", 404) == {"error": "no such stream"}


async def test_page_of_large_messages_is_bounded_by_bytes(backend: MemoryBackend) -> None:
    large = b'"%s"' % (b"x" * 1_500_000)
    async with serving(RestEndpoint(backend, KeyGuard("", Counter())).routes()) as client:
        await backend.streams.append([Publication("large", large) for _ in range(5)])
        first = await get(client, "/api/streams/large/history")
        assert _offsets(first) == [1]
        assert first["next"] == 1
        rest = await get(client, "/api/streams/large/history?after=4")
        assert _offsets(rest) == [5]
        assert rest["next"] is None


def _offsets(answer: dict[str, object]) -> list[int]:
    messages = answer["messages"]
    assert isinstance(messages, list)
    return [message["offset"] for message in messages]


# --- Presence --------------------------------------------------------------------------------------------------------


async def test_members_are_listed_by_id_in_pages(client: Client, backend: MemoryBackend) -> None:
    for number, info in enumerate([b'{"name":"Bo"}', b"", b'"x"']):
        await backend.presence.join("chat/1", f"sid{number}", Member(f"m{number}", info))
    first = await get(client, "/api/presence/chat%2F1/users?limit=2")
    assert first == {
        "type": "info",
        "total": 3,
        "records": [{"info": {"name": "Bo"}, "id": "m0"}, {"id": "m1"}],
        "next": "m1",
    }
    last = await get(client, "/api/presence/chat%2F1/users?limit=2&after=m1")
    assert last == {"type": "info", "total": 3, "records": [{"info": "x", "id": "m2"}], "next": None}


async def test_members_are_counted_without_listing_them(client: Client, backend: MemoryBackend) -> None:
    for number in range(3):
        await backend.presence.join("chat", f"sid{number}", Member(f"m{number}", b""))
    answer = await get(client, "/api/presence/chat/users?limit=0")
    assert (answer["total"], answer["records"]) == (3, [])


async def test_presence_set_may_have_any_name(client: Client, backend: MemoryBackend) -> None:
    await backend.presence.join("two\nlines", "sid", Member("m", b""))
    assert (await get(client, "/api/presence/two%0Alines/users"))["records"] == [{"id": "m"}]


async def test_presence_set_may_be_empty(client: Client) -> None:
    assert await get(client, "/api/presence/x/users") == {"type": "info", "total": 0, "records": [], "next": None}


# --- Refusals --------------------------------------------------------------------------------------------------------


async def test_invalid_limit_is_answered_with_400_and_the_bounds(client: Client, subtests: pytest.Subtests) -> None:
    for path, least in [("/api/streams", 1), ("/api/streams/chat/history", 1), ("/api/presence/chat/users", 0)]:
        for limit in [*["0"] * least, "1001", "-1", "x", "1.5", "1_0", "9" * 30, "%EF%BC%91", "+1"]:
            with subtests.test(path=path, limit=limit):
                assert await get(client, f"{path}?limit={limit}", 400) == {
                    "error": f"limit must be a whole number from {least} to 1000"
                }


async def test_invalid_offset_is_answered_with_400(client: Client, subtests: pytest.Subtests) -> None:
    for after in ["-1", "x", "9223372036854775808", "1e3"]:
        with subtests.test(after=after):
            assert "after must be" in str((await get(client, f"/api/streams/chat/history?after={after}", 400))["error"])


async def test_every_path_needs_the_key(backend: MemoryBackend, subtests: pytest.Subtests) -> None:
    for path in ["/api/streams", "/api/streams/chat/history", "/api/presence/chat/users"]:
        with subtests.test(path=path):
            await backend.streams.append([Publication("chat", b"1")])
            async with serving(RestEndpoint(backend, KeyGuard("k3y", Counter())).routes()) as client:
                assert (await client.get(path)).status == 401
                assert (await client.get(path, headers={"Authorization": "Bearer wrong"})).status == 401
                assert (await client.get(path, headers={"Authorization": "Bearer k3y"})).status == 200


async def test_other_methods_are_answered_with_405(client: Client) -> None:
    assert (await client.post("/api/streams")).status == 405
