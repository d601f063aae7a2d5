"""One depth for everything that is decoded, wherever it comes from: what is 128 deep is taken, what is deeper is refused."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ropewalk.adapters.apps.rpc.http import _decode as rpc_answer
from ropewalk.adapters.endpoints.http_guard import decoded
from ropewalk.channels.texts import json_bytes, json_text
from ropewalk.cli.publish import _json_or_text
from ropewalk.client.stream import _json as client_json
from ropewalk.engine.bounds import check_command_result
from ropewalk.model.application import CommandResult
from ropewalk.model.errors import RopewalkError
from ropewalk.model.limits import Limits
from ropewalk.model.nesting import MAX_DEPTH
from ropewalk.protocol import cable_json
from ropewalk.protocol.event_ids import LastEventId
from ropewalk.protocol.publications import PublicationLimits, decode, decode_gently
from ropewalk.protocol.sse_request import subscriptions_of_body

TOO_DEEP = [MAX_DEPTH + 1, 500, 980, 20_000]
STACK = 500  # frames that may be on Python's stack without changing what is accepted


class Anything(msgspec.Struct):
    """Every key is unknown to it, and passed over."""


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def value(depth: int) -> Any:
    built: list[object] = []
    for _ in range(depth - 1):
        built = [built]
    return built


def command(**fields: str) -> bytes:
    """A command whose fields are JSON texts."""
    return "{{{}}}".format(",".join(f'"{name}":{text}' for name, text in fields.items())).encode()


def subscribe(info: str) -> bytes:
    return command(command='"subscribe"', identifier='"i"', presence=f'{{"id":"1","info":{info}}}')


ENDPOINTS: dict[str, Callable[[int], object]] = {
    "publication": lambda depth: decode(json.dumps({"stream": "s", "data": deep(depth)}).encode(), PublicationLimits()),
    "batch": lambda depth: decode(json.dumps([{"stream": "s", "data": deep(depth)}] * 200).encode(), PublicationLimits()),
    "publication that is no text": lambda depth: decode(
        b'{"stream":"s","data":%b}' % deep(depth).encode(), PublicationLimits()
    ),
    "large batch": lambda depth: asyncio.run(
        decode_gently(json.dumps([{"stream": "s", "data": deep(depth)}] * 400).encode(), PublicationLimits())
    ),
    "unknown key of a publication": lambda depth: decode(
        b'[{"stream":"s","data":"1","x":%b}]' % deep(depth).encode(), PublicationLimits()
    ),
    "whisper": lambda depth: cable_json.decode(command(command='"whisper"', identifier='"i"', data=deep(depth))),
    "presence of a command": lambda depth: cable_json.decode(subscribe(deep(depth))),
    "command over SSE": lambda depth: subscriptions_of_body(subscribe(deep(depth)), LastEventId(), 9),
    "order over HTTP": lambda depth: decoded(b'{"x":%b}' % deep(depth - 1).encode(), Anything, "the order"),
    "answer of an application": lambda depth: rpc_answer(deep(depth).encode()),
    "transmission of an application": lambda depth: check_command_result(
        CommandResult(transmissions=(f'{{"identifier":"i","message":{deep(depth)}}}',)), Limits(), {}, {}
    ),
    "message of a Python channel": lambda depth: json_bytes(value(depth), "the message"),
    "transmission of a Python channel": lambda depth: json_text({"message": value(depth)}, "what", MAX_DEPTH + 1),
    "whisper of the Python client": lambda depth: client_json(value(depth), "a whisper"),
    "command line": lambda depth: _json_or_text(deep(depth)),
}


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_is_as_deep_as_the_limit_is_taken(endpoint: str) -> None:
    assert ENDPOINTS[endpoint](MAX_DEPTH)


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_how_deep_the_stack_is_does_not_count(endpoint: str) -> None:
    def called(frames: int) -> object:
        return called(frames - 1) if frames else ENDPOINTS[endpoint](MAX_DEPTH)

    assert sys.getrecursionlimit() > STACK + MAX_DEPTH
    assert called(STACK)


@pytest.mark.parametrize("depth", TOO_DEEP)
@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_what_is_deeper_is_refused_with_words(endpoint: str, depth: int) -> None:
    with pytest.raises((RopewalkError, ValueError), match=f"nested more than {MAX_DEPTH} deep"):
        ENDPOINTS[endpoint](depth)
