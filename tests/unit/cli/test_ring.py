"""`ropewalk ring` without a server, and what it says to wrong arguments."""

import json
from zlib import crc32

import pytest

from ropewalk.cli import ring_drawing
from ropewalk.cli.main import main
from ropewalk.model.ring import RingNode, RingPlace, RingReport


def test_it_shows_what_would_move_if_a_node_came(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a,b,c", "--shards", "64", "--join", "d"]) == 0
    shown = capsys.readouterr().out
    assert "64 shards on 3 nodes" in shown
    assert "16 shards of 64 would move (25.0%)" in shown
    assert "a → d" in shown
    assert "64 shards on 4 nodes" in shown


def test_the_same_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a,b", "--shards", "4", "--leave", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "owners": ["a", "b", "a", "b"],
        "after": ["a", "a", "a", "a"],
        "moves": [{"shard": 1, "source": "b", "target": "a"}, {"shard": 3, "source": "b", "target": "a"}],
    }


def test_it_tells_where_a_stream_is(capsys: pytest.CaptureFixture[str]) -> None:
    ring = ["ring", "--members", "a,b", "--shards", "4", "--stream", "{room-7}/messages"]
    shard = crc32(b"room-7") % 4
    assert main(ring) == 0
    assert capsys.readouterr().out.endswith(f"\n{{room-7}}/messages is in shard {shard}, owned by {'ab'[shard % 2]}\n")
    assert main([*ring, "--leave", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["place"] == {
        "stream": "{room-7}/messages",
        "shard": shard,
        "owner": "a",
        "holder": "",
    }


def test_without_a_change_it_shows_the_ring_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a,b", "--shards", "4"]) == 0
    assert "move" not in capsys.readouterr().out


def test_a_report_shows_each_node_and_what_is_wrong() -> None:
    nodes = [RingNode("a", "h:1", True, False, 2, 1, 0.5), RingNode("b", "h:2", False, True, 2, 3, 0.5)]
    shown = ring_drawing.report(RingReport("a", 7, 4, nodes, moving=1, unavailable=3)).splitlines()
    assert shown[0] == "A ring of 4 shards on 2 nodes: term 7, seen by a"
    assert shown[3].split()[:5] == ["a", "h:1", "alive", "2", "1"]
    assert shown[4].split()[:6] == ["b", "h:2", "away,", "leaving", "2", "3"]
    assert "1 shard on the way to another node" in shown
    assert "3 shards unavailable: the node that holds them does not answer" in shown
    assert "is in shard" not in shown[-1]
    begins = [RingNode("a", "h:1", True, False, 2, 1, 0.5), RingNode("b", "h:2", False, True, 2, 1, 0.5)]
    shown = ring_drawing.report(RingReport("a", 7, 4, begins, unavailable=3)).splitlines()
    assert shown[-2] == "1 shard unavailable: the node that holds them does not answer"
    assert shown[-1] == "2 shards unavailable: no node is known to hold them yet"
    unknown = [RingNode("d", "h:4", True, False, 4, 0, 1.0)]
    waiting = ring_drawing.report(RingReport("d", 0, 4, unknown, moving=4, unavailable=4, waits_for="Redis is not reached"))
    assert waiting.splitlines()[-1] == "d waits for its ring: Redis is not reached"
    assert "4 shards unavailable" not in waiting  # who holds them is not known
    assert "on the way" not in waiting
    placed = RingReport("a", 7, 4, nodes, place=RingPlace("chat/1", 3, "a", "b"))
    assert ring_drawing.report(placed).splitlines()[-1] == "chat/1 is in shard 3, owned by a and held by b"


@pytest.mark.parametrize(
    ("argv", "why"),
    [
        (["add"], "ring add NAME=HOST:PORT"),
        (["remove"], "ring remove NAME"),
        (["show", "a"], "write `ropewalk ring`"),
        (["--lost"], "--lost is said of a node that is removed"),
        (["add", "a=h:1", "--members", "a"], "needs a server"),
        (["remove", "b", "--stream", "s"], "run `ropewalk ring` for it"),
        (["--join", "d"], "go with --members"),
        (["--members", "a,,b"], "different names"),
        (["--members", "a,a"], "different names"),
        (["--members", "a,b", "--shards", "0"], "more than 0"),
        (["--members", "a,b", "--join", "a"], "one of --members"),
        (["--members", "a,b", "--leave", "c"], "none of --members"),
        (["add", "d", "--url", "http://127.0.0.1:1"], "name=host:port"),
    ],
)
def test_what_makes_no_sense_is_explained(argv: list[str], why: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", *argv]) == 2
    assert why in capsys.readouterr().err


def test_the_last_node_cannot_leave(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a", "--leave", "a"]) == 1
    assert "at least one node" in capsys.readouterr().err


def test_a_server_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--url", "http://127.0.0.1:1"]) == 1
    assert "is the server running there?" in capsys.readouterr().err
