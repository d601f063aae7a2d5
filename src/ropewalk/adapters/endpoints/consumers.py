"""The endpoint for named readers of the journal. The server keeps their marks, so that a reader need not.

Invariant: a mark lies within what the journal has given out; anything else is refused here.
"""

from ropewalk.adapters.endpoints.http_guard import KeyGuard, body_of, decoded, guarded
from ropewalk.adapters.endpoints.http_requests import HttpRequest
from ropewalk.adapters.endpoints.http_responses import HttpResponse, json_answer, refusal
from ropewalk.adapters.endpoints.routes import HttpRoute
from ropewalk.core.consumers import count_lag, is_valid_mark
from ropewalk.core.transactions import check_name
from ropewalk.model.errors import BadRequest
from ropewalk.model.journal import Consumer, Marks, ShardMark, ShardSpan
from ropewalk.ports import ConsumerStore, JournalReader

MAX_OFFSET = 64 * 1024
_LONGEST_EPOCH = 64


class ConsumersEndpoint:
    def __init__(self, store: ConsumerStore, journal: JournalReader, guard: KeyGuard) -> None:
        self._store = store
        self._journal = journal
        self._guard = guard

    def routes(self, path: str) -> list[HttpRoute]:
        one = f"{path}/consumers/{{name}}"
        return [
            HttpRoute("GET", f"{path}/consumers", guarded(self._guard, self._list)),
            HttpRoute("POST", one, guarded(self._guard, self._pin)),
            HttpRoute("PUT", one, guarded(self._guard, self._move)),
            HttpRoute("DELETE", one, guarded(self._guard, self._forget)),
        ]

    async def _list(self, request: HttpRequest) -> HttpResponse:
        spans = self._journal.spans()
        return json_answer(200, {"consumers": [_shown(consumer, spans) for consumer in self._store.consumers()]})

    async def _pin(self, request: HttpRequest) -> HttpResponse:
        consumer = await self._store.pin(_name(request), await self._marks(request))
        return json_answer(200, _offset(consumer))

    async def _move(self, request: HttpRequest) -> HttpResponse:
        consumer = await self._store.move(_name(request), await self._marks(request))
        return json_answer(200, _offset(consumer))

    async def _forget(self, request: HttpRequest) -> HttpResponse:
        name = _name(request)
        if not await self._store.remove(name):
            return refusal(404, f"there is no consumer {name}")
        return json_answer(200, {})

    async def _marks(self, request: HttpRequest) -> Marks:
        marks = decoded(await body_of(request, MAX_OFFSET), dict[int, ShardMark], "the offset")
        if not marks:
            raise BadRequest("an offset has a mark for one shard at the least")
        _check(marks, self._journal.spans())
        return marks


def _check(marks: Marks, spans: list[ShardSpan]) -> None:
    for shard, mark in marks.items():
        own = [span for span in spans if span.shard == shard]
        if not own or not 0 <= mark.position <= own[-1].end:
            raise BadRequest(f"shard {shard} has no position {mark.position}")
        if len(mark.epoch) > _LONGEST_EPOCH:
            raise BadRequest(f"an epoch has {_LONGEST_EPOCH} characters at the most")
        if not is_valid_mark(own, mark):
            raise BadRequest(f"position {mark.position} of shard {shard} is not of the epoch {mark.epoch!r}")


def _name(request: HttpRequest) -> str:
    return check_name(request.params["name"], "consumer")


def _offset(consumer: Consumer) -> dict[str, object]:
    return {str(shard): mark for shard, mark in consumer.marks.items()}


def _shown(consumer: Consumer, spans: list[ShardSpan]) -> dict[str, object]:
    rows = count_lag(consumer.marks, spans)
    return {
        "name": consumer.name,
        "offset": _offset(consumer),
        "moved": consumer.moved,
        "lag": {str(shard): rows[shard] for shard in rows},
    }
