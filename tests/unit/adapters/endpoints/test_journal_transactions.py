"""The transactions endpoint over a real socket: calls to the transactor, and every refusal."""

import asyncio
import io
from collections import Counter
from collections.abc import AsyncIterator, Mapping

import pytest

from ropewalk.adapters.endpoints.http_guard import KeyGuard
from ropewalk.adapters.endpoints.journal import MAX_COMMIT, PLACES, TransactionsEndpoint
from ropewalk.model.errors import Conflict, LimitReached, MalformedPublication, RopewalkError, Unavailable
from ropewalk.model.transactions import Committed, Produced, Staged
from tests.unit.adapters.http_server import Client, serving

STAGE = "/journal/transactions/app/5/stage?part=1&attempt=2&seq=3"
COMMIT = "/journal/transactions/app/5/commit"
WINNERS = b'{"winners":{"0":1}}'


class FakeTransactor:
    """A transactor that records calls, or raises `error`."""

    def __init__(self) -> None:
        self.asked: list[tuple[object, ...]] = []
        self.error: RopewalkError | None = None
        self.open = asyncio.Event()
        self.open.set()
        self.busy = self.busiest = 0

    async def _note(self, *what: object) -> None:
        if self.error is not None:
            raise self.error
        self.busy += 1
        self.busiest = max(self.busiest, self.busy)
        await self.open.wait()
        self.busy -= 1
        self.asked.append(what)

    async def stage(self, app: str, batch: int, key: tuple[int, int, int], body: bytes) -> Staged:
        await self._note(app, batch, key, body)
        return Staged(7)

    async def commit(self, app: str, batch: int, winners: Mapping[int, int], counts: Mapping[int, int]) -> Committed:
        await self._note(app, batch, winners, counts)
        return Committed(4, 1, False, batch)

    async def last_batch(self, app: str) -> int | None:
        await self._note(app)
        return None

    async def produce(self, producer: str, first: int, body: bytes) -> Produced:
        await self._note(producer, first, body)
        return Produced(3, 2)

    async def publish(self, body: bytes) -> Produced:
        await self._note(body)
        return Produced(1, 0)


@pytest.fixture
def transactor() -> FakeTransactor:
    return FakeTransactor()


@pytest.fixture
async def client(transactor: FakeTransactor) -> AsyncIterator[Client]:
    opened = TransactionsEndpoint(transactor, KeyGuard("", Counter()), 100).routes("/journal")
    closed = TransactionsEndpoint(transactor, KeyGuard("k3y", Counter()), 100).routes("/closed")
    async with serving([*opened, *closed]) as client:
        yield client


async def ask(client: Client, method: str, path: str, body: bytes | io.BytesIO = b"") -> tuple[int, object]:
    async with client.request(method, path, data=body) as response:
        return response.status, await response.json()


async def test_body_is_staged_with_its_numbers(client: Client, transactor: FakeTransactor) -> None:
    assert await ask(client, "POST", STAGE, b"rows") == (200, {"rows": 7, "duplicate": False})
    assert transactor.asked == [("app", 5, (1, 2, 3), b"rows")]


async def test_commit_has_winners_and_optional_piece_counts(client: Client, transactor: FakeTransactor) -> None:
    answer = {"published": 4, "skipped": 1, "duplicate": False, "last": 5}
    assert await ask(client, "POST", COMMIT, WINNERS) == (200, answer)
    assert await ask(client, "POST", COMMIT, b'{"winners":{"0":1,"1":9},"pieces":{"1":0}}') == (200, answer)
    assert transactor.asked == [("app", 5, {0: 1}, {}), ("app", 5, {0: 1, 1: 9}, {1: 0})]


async def test_new_application_has_no_last_batch(client: Client) -> None:
    assert await ask(client, "GET", "/journal/transactions/app") == (200, {"last": None})


async def test_numbered_and_plain_rows_are_published(client: Client, transactor: FakeTransactor) -> None:
    assert await ask(client, "POST", "/journal/producers/p:1?sequence=9", b"rows") == (200, {"published": 3, "skipped": 2})
    assert await ask(client, "POST", "/journal/publications", b"rows") == (200, {"published": 1, "skipped": 0})
    assert transactor.asked == [("p:1", 9, b"rows"), (b"rows",)]


async def test_invalid_name_or_number_is_refused(client: Client, transactor: FakeTransactor, subtests: pytest.Subtests) -> None:
    rows: list[str] = [
        "/journal/transactions/a%2Fb/5/stage?part=0&attempt=0&seq=0",
        "/journal/transactions/a%20b/5/stage?part=0&attempt=0&seq=0",
        f"/journal/transactions/{'x' * 129}/5/stage?part=0&attempt=0&seq=0",
        "/journal/transactions/app/x/stage?part=0&attempt=0&seq=0",
        "/journal/transactions/app/-1/stage?part=0&attempt=0&seq=0",
        "/journal/transactions/app/2147483648/stage?part=0&attempt=0&seq=0",
        "/journal/transactions/app/5/stage?attempt=0&seq=0",
        "/journal/transactions/app/5/stage?part=0&seq=0",
        "/journal/transactions/app/5/stage?part=0&attempt=0",
        "/journal/transactions/app/5/stage?part=-1&attempt=0&seq=0",
        "/journal/transactions/app/5/stage?part=0&attempt=1e3&seq=0",
        "/journal/transactions/app/5/stage?part=0&attempt=0&seq=99999999999999999999",
        "/journal/transactions/a%2Fb/5/commit",
        "/journal/producers/a%2Fb?sequence=0",
        "/journal/producers/p",
        "/journal/producers/p?sequence=9223372036854775807",
    ]
    for path in rows:
        with subtests.test(path=path):
            status, answer = await ask(client, "POST", path, WINNERS)
            assert status == 400
            assert isinstance(answer, dict)
            assert answer["error"]
            assert transactor.asked == []


async def test_malformed_commit_is_refused(client: Client, transactor: FakeTransactor, subtests: pytest.Subtests) -> None:
    rows: list[bytes] = [
        b"",
        b"{}",
        b"[]",
        b'{"winners":[1]}',
        b'{"winners":{"a":1}}',
        b'{"winners":{"0":"x"}}',
        b'{"winners":{"0":1.5}}',
        b"\xff",
    ]
    for body in rows:
        with subtests.test(body=body):
            assert (await ask(client, "POST", COMMIT, body))[0] == 400
            assert transactor.asked == []


async def test_body_over_the_limit_is_refused(client: Client, transactor: FakeTransactor) -> None:
    assert (await ask(client, "POST", STAGE, b"x" * 101))[0] == 413
    assert (await ask(client, "POST", COMMIT, io.BytesIO(b" " * (MAX_COMMIT + 1))))[0] == 413
    assert (await ask(client, "POST", STAGE, b"x" * 100))[0] == 200
    assert len(transactor.asked) == 1


async def test_errors_of_the_transactor_are_answered_with_their_status(
    client: Client, transactor: FakeTransactor, subtests: pytest.Subtests
) -> None:
    rows: list[tuple[RopewalkError, int, dict[str, object]]] = [
        (MalformedPublication("why", 17), 422, {"error": "why", "index": 17}),
        (Conflict("why", [{"part": 1, "attempt": 2}]), 409, {"error": "why", "missing": [{"part": 1, "attempt": 2}]}),
        (LimitReached("why"), 507, {"error": "why"}),
        (Unavailable("why"), 503, {"error": "why"}),
    ]
    for error, status, answer in rows:
        with subtests.test(error=error, status=status, answer=answer):
            transactor.error = error
            assert await ask(client, "POST", STAGE) == (status, answer)
            assert await ask(client, "POST", COMMIT, WINNERS) == (status, answer)


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/closed/transactions/app"),
        ("POST", "/closed/transactions/app/5/stage?part=0&attempt=0&seq=0"),
        ("POST", "/closed/transactions/app/5/commit"),
        ("POST", "/closed/producers/p?sequence=0"),
        ("POST", "/closed/publications"),
    ],
)
async def test_every_path_needs_the_key(client: Client, transactor: FakeTransactor, method: str, path: str) -> None:
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        async with client.request(method, path, data=WINNERS, headers=headers) as response:
            assert response.status == 401
    assert transactor.asked == []
    async with client.request(method, path, data=WINNERS, headers={"Authorization": "Bearer k3y"}) as response:
        assert response.status == 200


async def test_number_of_concurrent_bodies_is_bounded(client: Client, transactor: FakeTransactor) -> None:
    transactor.open.clear()
    asking = [asyncio.create_task(ask(client, "POST", STAGE, b"rows")) for _ in range(3 * PLACES)]
    while transactor.busy < PLACES:
        await asyncio.sleep(0)
    transactor.open.set()
    assert {status for status, _ in await asyncio.gather(*asking)} == {200}
    assert transactor.busiest == PLACES
