"""The hand-written reference pages list exactly what the code has."""

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
from ropewalk.pipeline.runner import PipelineMetrics
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


SERVER_METRICS = r"(?:ropewalk_(?!pipeline_)|process_)"


def metrics_of_one_process(home: Path) -> set[str]:
    places = ("--data_dir", str(home / "data"), "--archive_dir", str(home / "archive"))
    unreachable = ("--rpc_host", "http://127.0.0.1:1/rpc", "--broadcaster=redisx", "--redis_url=redis://127.0.0.1:1")
    return exposed_by("--public", *places, *unreachable)


@pytest.mark.tier("standard")
def test_metrics_lists_every_metric_of_a_server(tmp_path: Path) -> None:
    assert metrics_of_one_process(tmp_path) - set(metrics_listed(SERVER_METRICS)) == set()


@pytest.mark.tier("all")
def test_metrics_lists_exactly_the_metrics_of_all_kinds_of_servers(tmp_path: Path) -> None:
    alone = metrics_of_one_process(tmp_path)
    several = exposed_by("--public", "--data_dir", str(tmp_path / "several"), "--workers", "2")
    with redis_server() as redis:
        flags = ("--data_dir", str(tmp_path / "shared"), "--broker", "redis", "--redis_url", redis.url)
        recording = exposed_by("--public", *flags)
    member = ("--secret", "ring", "--ring", f"a=127.0.0.1:{free_port()}", "--ring_node", "a")
    ring = exposed_by("--public", *member)

    assert sorted(metrics_listed(SERVER_METRICS)) == sorted(alone | several | recording | ring)
    assert sorted(metrics_listed("ropewalk_ring_")) == sorted(ring - alone - several - recording)


def exposed_by(*flags: str) -> set[str]:
    """The metrics of a server with these flags. Fails if one of them is exposed twice."""
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


def test_metrics_lists_every_gap_reason() -> None:
    assert [reason for reason in GapReason if f"`{reason}`" not in METRICS.read_text()] == []


def test_metrics_lists_exactly_the_refusal_reasons() -> None:
    chapter = METRICS.read_text().partition("## Refusals\n")[2].partition("\n## ")[0]
    listed = re.findall(r"^\| `((?!ropewalk_)\w+)` \|", chapter, re.MULTILINE)

    assert listed == sorted(Refusal)


BROKY_ONLY = ReadHistory, SubscribePrefix


def frames_shown() -> list[bytes]:
    return [line.encode() for block in blocks(PROTOCOL) if block.language == "json" for line in block.text.splitlines()]


def test_protocol_shows_every_client_command_in_valid_form() -> None:
    read = [cable_json.decode(frame) for frame in frames_shown() if b'"command"' in frame]

    assert {type(command) for command in read} == {*get_args(Command)} - {Unusable, *BROKY_ONLY}


def test_protocol_shows_every_server_message_in_valid_form() -> None:
    read = [server_messages.decode(frame) for frame in frames_shown() if b'"command"' not in frame]

    assert {type(message) for message in read} == {*get_args(ServerMessage)} - {UnknownMessage}


def test_protocol_lists_every_close_code_and_disconnect_reason() -> None:
    page = PROTOCOL.read_text()
    known = [value for value in vars(closings).values() if isinstance(value, Closing)]

    assert known
    assert [closing for closing in known if not re.search(row_of(closing), page, re.MULTILINE)] == []


def row_of(closing: Closing) -> str:
    """The pattern of its row in the table."""
    reconnect = msgspec.json.encode(closing.reconnect).decode() if closing.reason else ""
    reason = f"`{closing.reason}`" if closing.reason else ""
    return rf"^\| *{re.escape(reason)} *\| *{reconnect} *\| *{closing.code} *\| *{re.escape(closing.text)} *\|"


def flags_in(text: str) -> set[str]:
    """The flags, with `_` for `-`: the two are equivalent."""
    return {"--" + flag[2:].replace("-", "_") for flag in FLAG.findall(text)}


def test_cli_has_a_chapter_for_every_command() -> None:
    chapters = re.findall(r"^## ropewalk (\w+)$", CLI.read_text(), re.MULTILINE)

    assert sorted(chapters) == sorted(COMMANDS)


SUBCOMMANDS = {
    "token": ("jwt", "stream", "keys"),
    "pipeline": ("list", "run"),
    "journal": ("verify", "repair", "backup", "columns"),
}


def test_cli_lists_exactly_the_flags_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    page = CLI.read_text()
    unknown: dict[str, set[str]] = {}
    missing: dict[str, set[str]] = {}
    for command in COMMANDS:
        known = known_flags(command, capsys)
        listed = flags_in(page.partition(f"## ropewalk {command}\n")[2].partition("\n## ")[0])
        unknown[command] = listed - known
        # The flags of these two are the settings, which have a page of their own.
        missing[command] = set() if command in ("serve", "config") else known - {"--help"} - listed

    assert {command: flags for command, flags in unknown.items() if flags} == {}
    assert {command: flags for command, flags in missing.items() if flags} == {}


def known_flags(command: str, capsys: pytest.CaptureFixture[str]) -> set[str]:
    subcommands = SUBCOMMANDS.get(command)
    for words in [[command, name] for name in subcommands] if subcommands else [[command]]:
        with suppress(SystemExit):  # argparse exits after its help
            main([*words, "--help"])
    return flags_in(capsys.readouterr().out)


def test_migration_page_names_only_existing_settings() -> None:
    table = re.findall(r"^\| (`[^|]+`) \| ([^|]+) \|", MOVING.read_text().split("## Flag by flag")[1], re.MULTILINE)
    names = {
        name.replace("-", "_")
        for theirs, ours in table
        for name in re.findall(r"`([\w*-]+)`", theirs if ours == "same" else ours)
    }

    assert len(names) > 50
    assert sorted(names - SETTINGS.keys() - {"config_path", "http", "memory", "none"}) == []


@pytest.mark.tier("standard")
def test_journal_lists_every_file_of_a_data_directory(tmp_path: Path) -> None:
    """With sealed segments, a consumer and a staged batch."""
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
    """Whether a line of the list matches this file. A line that ends in a slash matches all files of the directory."""
    words = re.split(r"(<[^>]+>)", line + "<any>" if line.endswith("/") else line)
    return bool(re.fullmatch("".join(r"[\w.-]+" if word.startswith("<") else re.escape(word) for word in words), name))
