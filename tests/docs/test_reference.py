"""The reference pages that people write: nothing in them is missing, and nothing in them is invented."""

import re
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from prometheus_client import generate_latest

from ropewalk.app.settings.sections import SETTINGS
from ropewalk.cli.main import COMMANDS, main
from ropewalk.model import closing as closings
from ropewalk.model.closing import Closing
from ropewalk.model.commands import Command, ReadHistory, SubscribePrefix, Unusable
from ropewalk.model.history import GapReason
from ropewalk.model.refusals import Refusal
from ropewalk.pipeline.metrics import PipelineMetrics
from ropewalk.protocol import cable_json, server_messages
from ropewalk.protocol.server_messages import ServerMessage, UnknownMessage
from tests.arrow_rows import rows_body
from tests.docs.pages import ROOT, blocks
from tests.server import running_server
from tests.services import free_port, redis_server

REFERENCE = ROOT / "docs" / "reference"
METRICS, PROTOCOL, CLI, JOURNAL = (REFERENCE / name for name in ("metrics.md", "protocol.md", "cli.md", "journal.md"))
MOVING = ROOT / "docs" / "how-to" / "from-anycable-go.md"
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z_-]*")


def test_metrics_lists_exactly_the_metrics_that_servers_expose(tmp_path_factory: pytest.TempPathFactory) -> None:
    home = tmp_path_factory.mktemp("whole")
    everything = ("--public", "--data_dir", str(home / "data"), "--archive_dir", str(home / "archive"))
    nobody = ("--rpc_host", "http://127.0.0.1:1/rpc", "--broadcaster=redisx", "--redis_url=redis://127.0.0.1:1")  # only counted
    alone = exposed_by(*everything, *nobody)
    several = exposed_by("--public", "--data_dir", str(home / "several"), "--workers", "2")
    with redis_server() as redis:
        recording = exposed_by("--public", "--data_dir", str(home / "shared"), "--broker", "redis", "--redis_url", redis.url)
    address = f"127.0.0.1:{free_port()}"
    member = ("--secret", "ring", "--port", address.partition(":")[2], "--ring", f"a={address}", "--ring_node", "a")
    ring = exposed_by("--public", *member)

    assert sorted(metrics_listed(r"(?:ropewalk_(?!pipeline_)|process_)")) == sorted(alone | several | recording | ring)
    assert sorted(metrics_listed("ropewalk_ring_")) == sorted(ring - alone - several - recording)


def exposed_by(*flags: str) -> set[str]:
    """The metrics of a server with these flags; none of them is there twice."""
    with running_server(*flags) as server, urllib.request.urlopen(f"{server.url}/metrics") as answer:
        names = re.findall(r"^# TYPE (\S+) ", answer.read().decode(), re.MULTILINE)
    assert len(names) == len(set(names))
    return set(names)


def test_metrics_lists_exactly_the_metrics_of_a_pipeline() -> None:
    page = generate_latest(PipelineMetrics([])).decode()
    exposed = re.findall(r"^# TYPE (\S+) (\S+)$", page, re.MULTILINE)
    listed = metrics_listed("ropewalk_pipeline_")

    assert sorted(listed) == sorted(name for name, _ in exposed)
    assert [name for name, kind in exposed if f"| `{name}` | {kind} |" not in METRICS.read_text()] == []


def metrics_listed(prefix: str) -> list[str]:
    return re.findall(rf"^\| `({prefix}\w+)` \|", METRICS.read_text(), re.MULTILINE)


def test_metrics_lists_every_reason_of_a_gap() -> None:
    assert [reason for reason in GapReason if f"`{reason}`" not in METRICS.read_text()] == []


def test_metrics_lists_exactly_the_reasons_of_a_refusal() -> None:
    chapter = METRICS.read_text().partition("## Refusals\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `((?!ropewalk_)\w+)` \|", chapter, re.MULTILINE)

    assert listed == sorted(Refusal)


ONLY_BROKY_HAS = ReadHistory, SubscribePrefix


def frames_shown() -> list[bytes]:
    return [line.encode() for block in blocks(PROTOCOL) if block.language == "json" for line in block.text.splitlines()]


def test_protocol_shows_every_command_of_a_client_as_the_server_reads_it() -> None:
    read = [cable_json.decode(frame) for frame in frames_shown() if b'"command"' in frame]

    assert {type(command) for command in read} == {*get_args(Command)} - {Unusable, *ONLY_BROKY_HAS}


def test_protocol_shows_every_message_of_the_server_as_a_client_reads_it() -> None:
    read = [server_messages.decode(frame) for frame in frames_shown() if b'"command"' not in frame]

    assert {type(message) for message in read} == {*get_args(ServerMessage)} - {UnknownMessage}


@pytest.mark.parametrize("closing", [value for value in vars(closings).values() if isinstance(value, Closing)])
def test_protocol_lists_every_way_in_which_the_server_ends_a_connection(closing: Closing) -> None:
    reconnect = msgspec.json.encode(closing.reconnect).decode() if closing.reason else ""
    reason = f"`{closing.reason}`" if closing.reason else ""

    assert re.search(
        rf"^\| *{re.escape(reason)} *\| *{reconnect} *\| *{closing.code} *\| *{re.escape(closing.text)} *\|",
        PROTOCOL.read_text(),
        re.MULTILINE,
    )


def flags_in(text: str) -> set[str]:
    """With `_` for `-`: the two are the same in a flag."""
    return {"--" + flag[2:].replace("-", "_") for flag in FLAG.findall(text)}


def test_cli_has_a_chapter_for_every_command() -> None:
    chapters = re.findall(r"^## ropewalk (\w+)$", CLI.read_text(), re.MULTILINE)

    assert sorted(chapters) == sorted(COMMANDS)


@pytest.mark.parametrize("command", COMMANDS)
def test_cli_names_only_flags_that_the_command_has(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    kinds = {
        "token": ("jwt", "stream", "keys"),
        "pipeline": ("list", "run", "status", "stop"),
        "journal": ("verify", "repair", "backup", "columns"),
    }.get(command)
    for start in [[command, kind] for kind in kinds] if kinds else [[command]]:
        with suppress(SystemExit):  # that is how argparse ends after its help
            main([*start, "--help"])
    known = flags_in(capsys.readouterr().out)
    chapter = CLI.read_text().partition(f"## ropewalk {command}\n")[2].partition("\n## ")[0]

    assert flags_in(chapter) - known == set()
    if command not in ("serve", "config"):  # whose flags are the settings, which have a page of their own
        assert known - {"--help"} - flags_in(chapter) == set()


def test_moving_from_another_server_names_settings_that_exist() -> None:
    table = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", MOVING.read_text().split("## Flag by flag")[1], re.MULTILINE)
    names = {
        name.replace("-", "_")
        for theirs, ours in table
        for name in re.findall(r"`([\w*-]+)`", theirs if ours == "same" else ours)
    }

    assert len(names) > 50
    assert sorted(names - SETTINGS.keys() - {"config_path", "http", "memory", "none"}) == []


def test_journal_lists_every_file_of_a_data_directory(tmp_path: Path) -> None:
    """With segments that are sealed, a consumer and a staged batch."""
    rows = rows_body(*(("stream", f"{number}") for number in range(200)))
    sent = {"transactions/app/0/stage?part=0&attempt=0&seq=0": rows, "consumers/reader": b'{"0":{"e":"","p":0}}'}
    small = ("--journal_shards", "1", "--journal_segment_size", "4096")
    with running_server("--public", "--data_dir", str(tmp_path), *small) as server:
        for path, data in (("publications", rows), ("publications", rows), *sent.items()):
            with urllib.request.urlopen(f"{server.url}/journal/{path}", data) as answer:
                assert answer.status == 200
        assert server.stop() == 0
    listed = re.findall(r"^<data_dir>/((?:<[^>]+>|\S)+)", JOURNAL.read_text(), re.MULTILINE)
    found = [str(path.relative_to(tmp_path)) for path in sorted(tmp_path.rglob("*")) if path.is_file()]

    assert [name for name in found if not any(named_by(line, name) for line in listed)] == []
    absent = [line for line in listed if not any(named_by(line, name) for name in found)]
    assert absent == ["journal/shard=00/<first position>.damaged"]


def named_by(line: str, name: str) -> bool:
    """Whether a line of the list stands for this file; one that ends in a slash does for all in there."""
    words = re.split(r"(<[^>]+>)", line + "<any>" if line.endswith("/") else line)
    return bool(re.fullmatch("".join(r"[\w.-]+" if word.startswith("<") else re.escape(word) for word in words), name))
