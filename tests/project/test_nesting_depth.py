"""Every endpoint that decodes JSON accepts a nesting depth of 128 and refuses a deeper one."""

import asyncio
import json
import sys
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from ropewalk.adapters.apps.rpc.http import _decode as rpc_answer
from ropewalk.adapters.endpoints.http_guard import decoded
from ropewalk.channels.values import json_bytes, json_text
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
from ropewalk.protocol.sse import subscriptions_of_body

TOO_DEEP = [MAX_DEPTH + 1, 500, 980, 20_000]
STACK = 500  # frames on Python's stack that must not change the result


class Anything(msgspec.Struct):
    """Ignores every key."""


def deep(depth: int) -> str:
    return "[" * depth + "]" * depth


def value(depth: int) -> Any:
    built: list[object] = []
    for _ in range(depth - 1):
        built = [built]
    return built


def command(**fields: str) -> bytes:
    """A command; `fields` are JSON texts."""
    return "{{{}}}".format(",".join(f'"{name}":{text}' for name, text in fields.items())).encode()


def subscribe(info: str) -> bytes:
    return command(command='"subscribe"', identifier='"i"', presence=f'{{"id":"1","info":{info}}}')


ENDPOINTS: dict[str, Callable[[int], object]] = {
    "publication": lambda depth: decode(json.dumps({"stream": "s", "data": deep(depth)}).encode(), PublicationLimits()),
    "batch": lambda depth: decode(json.dumps([{"stream": "s", "data": deep(depth)}] * 200).encode(), PublicationLimits()),
    "publication whose data is JSON": lambda depth: decode(
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
    "request over HTTP": lambda depth: decoded(b'{"x":%b}' % deep(depth - 1).encode(), Anything, "the request"),
    "answer of an application": lambda depth: rpc_answer(deep(depth).encode()),
    "transmission of an application": lambda depth: check_command_result(
        CommandResult(transmissions=(f'{{"identifier":"i","message":{deep(depth)}}}',)), Limits(), {}, {}
    ),
    "message of a Python channel": lambda depth: json_bytes(value(depth), "the message"),
    "transmission of a Python channel": lambda depth: json_text({"message": value(depth)}, "what", MAX_DEPTH + 1),
    "whisper of the Python client": lambda depth: client_json(value(depth), "a whisper"),
    "command line": lambda depth: _json_or_text(deep(depth)),
}


def accepts(endpoint: str, depth: int) -> bool:
    try:
        return bool(ENDPOINTS[endpoint](depth))
    except (RopewalkError, ValueError):
        return False


def test_the_maximum_depth_is_accepted() -> None:
    assert [endpoint for endpoint in ENDPOINTS if not accepts(endpoint, MAX_DEPTH)] == []


def test_the_depth_of_the_call_stack_does_not_count() -> None:
    def call(frames: int, endpoint: str) -> bool:
        return call(frames - 1, endpoint) if frames else accepts(endpoint, MAX_DEPTH)

    assert sys.getrecursionlimit() > STACK + MAX_DEPTH
    assert [endpoint for endpoint in ENDPOINTS if not call(STACK, endpoint)] == []


@pytest.mark.parametrize("depth", TOO_DEEP)
def test_deeper_json_is_refused_with_the_limit_in_the_error(depth: int) -> None:
    wrong = {}
    for endpoint, decode_at in ENDPOINTS.items():
        try:
            wrong[endpoint] = str(decode_at(depth))[:80]
        except (RopewalkError, ValueError) as error:
            if f"nested more than {MAX_DEPTH} deep" not in str(error):
                wrong[endpoint] = str(error)
    assert wrong == {}
