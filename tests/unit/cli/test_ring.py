"""`ropewalk ring` without a server, its drawing of a report, and invalid arguments."""

import json
from zlib import crc32

import pytest

from ropewalk.cli.main import main
from ropewalk.cli.ring import draw_report
from ropewalk.model.ring import RingNode, RingPlace, RingReport


def test_join_shows_the_shards_that_would_move(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a,b,c", "--shards", "64", "--join", "d"]) == 0
    shown = capsys.readouterr().out
    assert "64 shards on 3 nodes" in shown
    assert "16 shards of 64 would move (25.0%)" in shown
    assert "a → d" in shown
    assert "64 shards on 4 nodes" in shown


def test_json_output_lists_owners_and_moves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a,b", "--shards", "4", "--leave", "b", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "owners": ["a", "b", "a", "b"],
        "after": ["a", "a", "a", "a"],
        "moves": [{"shard": 1, "source": "b", "target": "a"}, {"shard": 3, "source": "b", "target": "a"}],
    }


def test_stream_option_shows_shard_and_owner(capsys: pytest.CaptureFixture[str]) -> None:
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


def test_members_alone_show_no_moves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a,b", "--shards", "4"]) == 0
    assert "move" not in capsys.readouterr().out


def test_report_shows_nodes_and_unavailable_shards() -> None:
    nodes = [RingNode("a", "h:1", True, False, 2, 1, 0.5), RingNode("b", "h:2", False, True, 2, 3, 0.5)]
    shown = draw_report(RingReport("a", 7, 4, nodes, moving=1, unavailable=3)).splitlines()
    assert shown[0] == "A ring of 4 shards on 2 nodes: term 7, seen by a"
    assert shown[3].split()[:5] == ["a", "h:1", "alive", "2", "1"]
    assert shown[4].split()[:6] == ["b", "h:2", "away,", "leaving", "2", "3"]
    assert "1 shard moving to another node" in shown
    assert "3 shards unavailable: their node does not respond" in shown
    assert "is in shard" not in shown[-1]
    starting = [RingNode("a", "h:1", True, False, 2, 1, 0.5), RingNode("b", "h:2", False, True, 2, 1, 0.5)]
    shown = draw_report(RingReport("a", 7, 4, starting, unavailable=3)).splitlines()
    assert shown[-2] == "1 shard unavailable: their node does not respond"
    assert shown[-1] == "2 shards unavailable: no node holds them yet"
    unknown = [RingNode("d", "h:4", True, False, 4, 0, 1.0)]
    waiting = draw_report(RingReport("d", 0, 4, unknown, moving=4, unavailable=4, waits_for="Redis is not reached"))
    assert waiting.splitlines()[-1] == "d waits for its ring: Redis is not reached"
    assert "4 shards unavailable" not in waiting  # the holders are not known
    assert "on the way" not in waiting
    placed = RingReport("a", 7, 4, nodes, place=RingPlace("chat/1", 3, "a", "b"))
    assert draw_report(placed).splitlines()[-1] == "chat/1 is in shard 3, owned by a and held by b"


def test_invalid_arguments_are_explained(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["add"], "ring add NAME=HOST:PORT"),
        (["remove"], "ring remove NAME"),
        (["show", "a"], "write `ropewalk ring`"),
        (["--lost"], "--lost is for `ropewalk ring remove`"),
        (["add", "a=h:1", "--members", "a"], "needs a server"),
        (["remove", "b", "--stream", "s"], "run `ropewalk ring --stream NAME`"),
        (["--join", "d"], "need --members"),
        (["--members", "a,,b"], "different names"),
        (["--members", "a,a"], "different names"),
        (["--members", "a,b", "--shards", "0"], "at least 1"),
        (["--members", "a,b", "--join", "a"], "one of --members"),
        (["--members", "a,b", "--leave", "c"], "not one of --members"),
        (["add", "d", "--url", "http://127.0.0.1:1"], "name=host:port"),
    ]
    for argv, message in cases:
        with subtests.test(argv=argv):
            assert main(["ring", *argv]) == 2
            assert message in capsys.readouterr().err


def test_last_node_cannot_leave(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--members", "a", "--leave", "a"]) == 1
    assert "at least one node" in capsys.readouterr().err


def test_unreachable_server_is_reported(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["ring", "--url", "http://127.0.0.1:1"]) == 1
    assert "is the server running there?" in capsys.readouterr().err
