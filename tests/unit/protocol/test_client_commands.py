"""Commands encoded by the client are decoded by the server's half of the protocol."""

import msgspec
import pytest

from ropewalk.model.commands import History, Join, Leave, Perform, Pong, Presence, Subscribe, Unsubscribe, Whisper
from ropewalk.model.history import HistoryRequest
from ropewalk.model.messages import Position
from ropewalk.model.presence import Member
from ropewalk.protocol import cable_json
from ropewalk.protocol.client_commands import ClientCommand, encode


def test_server_decodes_each_encoded_command(subtests: pytest.Subtests) -> None:
    rows: list[ClientCommand] = [
        Subscribe("i"),
        Subscribe("i", HistoryRequest(12.5, {"s": Position("e", 3)}), Member("m", b'{"n":1}')),
        Unsubscribe("i"),
        Perform("i", '{"action":"speak"}'),
        History("i", HistoryRequest(None, {"s": Position("", 0)})),
        History("i", HistoryRequest(1700000000.0)),
        Whisper("i", b'{"typing":true}'),
        Presence("i"),
        Presence("i", after="bo"),
        Join("i", Member("m", b"[1]")),
        Join("i", Member("m")),
        Leave("i"),
        Pong(),
    ]
    for command in rows:
        with subtests.test(command=command):
            assert cable_json.decode(encode(command)) == command


def test_whole_seconds_are_written_without_a_fraction() -> None:
    body = msgspec.json.decode(encode(History("i", HistoryRequest(1700000000.0))))
    assert str(body["history"]["since"]) == "1700000000"
