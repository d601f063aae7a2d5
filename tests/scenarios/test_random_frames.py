"""Random input over real connections: the server answers all of it and keeps no session."""

import json
from collections.abc import Iterator

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.cable import Closed, cable, identifier
from tests.metrics import metrics_when
from tests.server import RunningServer, publish, running_server
from tests.tcp import client_frame, tcp

# Each example is a whole connection to a real server, so there are fewer than in the tests of single functions.
MAX_EXAMPLES = 60
EFFORT = settings(
    max_examples=min(settings().max_examples, MAX_EXAMPLES), suppress_health_check=[HealthCheck.function_scoped_fixture]
)

STREAM = "random"
NAMES = st.sampled_from([identifier(STREAM), identifier("other"), '{"channel":"Chat"}', "", "{", "null"]) | st.text(max_size=20)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
POSITIONS = st.fixed_dictionaries({"epoch": st.text(max_size=4), "offset": st.integers(0, 2**63 - 1)})
HISTORIES = st.fixed_dictionaries(
    {}, optional={"since": st.floats(allow_nan=False), "streams": st.dictionaries(NAMES, POSITIONS)}
)
MEMBERS = st.fixed_dictionaries({"id": st.text(max_size=5)}, optional={"info": JSON})
WORDS = st.sampled_from(
    ["subscribe", "unsubscribe", "message", "history", "whisper", "presence", "join", "leave", "ping", "pong", ""]
)

PLAUSIBLE = st.fixed_dictionaries(
    {"command": WORDS, "identifier": NAMES},
    optional={"data": JSON, "history": HISTORIES | st.none(), "presence": MEMBERS | st.none(), "type": st.text(max_size=8)},
)
"""Commands as a client might write them, in any order and with anything in them."""

MIXED_UP = st.fixed_dictionaries(
    {}, optional=dict.fromkeys(("command", "identifier", "data", "history", "presence", "type"), JSON)
)
"""The right names with any values."""


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--ping_interval", "0", "--command_rate", "0", "--history_limit", "10") as running:
        yield running


async def assert_server_is_idle_and_serves(server: RunningServer) -> None:
    """All sessions have ended, and the server serves a new client."""
    await metrics_when(server, lambda now: now["sessions"] == 0 and now["streams_listened"] == 0)
    async with cable(server) as client:
        await client.subscribe(STREAM)
        await publish(server, STREAM, "still here")
        assert await client.messages(1) == ["still here"]
    await metrics_when(server, lambda now: now["sessions"] == 0)


@EFFORT
@given(commands=st.lists(PLAUSIBLE | MIXED_UP, min_size=1, max_size=12))
async def test_random_commands_are_handled_or_refused(server: RunningServer, commands: list[object]) -> None:
    async with cable(server) as client:
        for command in commands:
            await client.send_raw(json.dumps(command))
        try:
            await client.send(command="ping")
            await client.until("pong")
        except (Closed, ConnectionError):
            assert (await client.closed())[0] in (1003, 1007)
    await assert_server_is_idle_and_serves(server)


@EFFORT
@given(messages=st.lists(st.binary(max_size=300) | st.text(max_size=300).map(str.encode), min_size=1, max_size=5))
async def test_random_bytes_in_valid_frames_close_the_connection(server: RunningServer, messages: list[bytes]) -> None:
    async with tcp(server, upgraded=True) as link:
        # Some are commands by chance and do not end the connection; the last one is not a command.
        await link.send(b"".join(client_frame(message) for message in [*messages, b"\xff"]))
        assert await link.close_code() in (1003, 1007)
    await assert_server_is_idle_and_serves(server)


@EFFORT
@given(data=st.binary(min_size=1, max_size=600))
async def test_random_bytes_in_place_of_frames_leave_no_session(server: RunningServer, data: bytes) -> None:
    async with tcp(server, upgraded=True) as link:
        await link.send(data)
    await assert_server_is_idle_and_serves(server)


@EFFORT
@given(data=st.binary(min_size=1, max_size=600), ended=st.booleans())
async def test_random_bytes_in_place_of_a_request_leave_no_session(server: RunningServer, data: bytes, ended: bool) -> None:
    async with tcp(server) as link:
        await link.send(data + b"\r\n\r\n" * ended)
    await assert_server_is_idle_and_serves(server)
