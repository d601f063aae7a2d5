"""`ropewalk ring`: draws the ring of a running server, adds and removes nodes, and shows beforehand what would move."""

import argparse
import asyncio
import os
import ssl

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout

from ropewalk.app.keys import keys_of
from ropewalk.app.settings import load
from ropewalk.cli import ring_drawing
from ropewalk.cli.reaching import add_flags, explained, key_help, url_of
from ropewalk.client.addresses import addresses
from ropewalk.client.tls import connection_error, http_session, tls_context
from ropewalk.core.ring_members import member_of
from ropewalk.core.ring_table import first_table, joined, moves, place_in, removed
from ropewalk.model.errors import RopewalkError, UserMistake
from ropewalk.model.ring import RingMember, RingReport, RingTable

SUMMARY = "show a ring of nodes, and change it"

PATH = "/api/ring"
SECONDS = 10.0


def run(argv: list[str]) -> int:
    parser = _parser()
    wanted = parser.parse_args(argv)
    _require_sense(wanted)
    if wanted.members:
        _plan(wanted)
        return 0
    key = wanted.key if wanted.key is not None else _key_of_settings(wanted.action)
    with explained():
        status, body = asyncio.run(_asked(url_of(wanted.url), key, tls_context(wanted.ca_file), _change(wanted), wanted.stream))
    if status == 401:
        raise UserMistake(f"the key is not accepted; {_key_help(wanted)}")
    report = _report(status, body)
    print(msgspec.json.encode(report).decode() if wanted.json else ring_drawing.report(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk ring", description=SUMMARY, allow_abbrev=False)
    parser.add_argument(
        "action", nargs="?", choices=("show", "add", "remove"), default="show", help="show, unless said otherwise"
    )
    parser.add_argument("node", metavar="NODE", nargs="?", default="", help="name=host:port to add, or the name to remove")
    parser.add_argument(
        "--lost", action="store_true", help="remove a node that is gone for good: its shards begin empty at other nodes"
    )
    add_flags(parser)
    parser.add_argument(
        "--key",
        help="bearer key of the API, by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET; to add and remove: the"
        " key for changes, by default derived from ROPEWALK_RING_KEY or ROPEWALK_SECRET",
    )
    parser.add_argument("--stream", default="", metavar="NAME", help="and which shard and node this stream belongs to")
    parser.add_argument("--json", action="store_true", help="print JSON")
    offline = parser.add_argument_group("without a server: how a ring would be divided")
    offline.add_argument("--members", default="", metavar="A,B,C", help="names of the nodes")
    offline.add_argument("--shards", type=int, help="number of shards (default: --journal_shards of the settings)")
    change = offline.add_mutually_exclusive_group()
    change.add_argument("--join", default="", metavar="D", help="and what would move if this node came")
    change.add_argument("--leave", default="", metavar="B", help="and what would move if this node went")
    return parser


def _require_sense(wanted: argparse.Namespace) -> None:
    if (wanted.action == "show") == bool(wanted.node):
        raise UserMistake("write `ropewalk ring`, `ropewalk ring add NAME=HOST:PORT` or `ropewalk ring remove NAME`")
    if wanted.lost and wanted.action != "remove":
        raise UserMistake("--lost is said of a node that is removed")
    if wanted.stream and wanted.action != "show":
        raise UserMistake(f"--stream asks where a stream is, and {wanted.action} changes the ring: run `ropewalk ring` for it")
    if wanted.members and wanted.action != "show":
        raise UserMistake(f"--members shows a ring that is only thought of: {wanted.action} needs a server (--url)")
    if (wanted.join or wanted.leave or wanted.shards is not None) and not wanted.members:
        raise UserMistake("--join, --leave and --shards go with --members")


def _key_of_settings(action: str) -> str:
    keys = keys_of(load([], os.environ))
    return (keys.api or "") if action == "show" else keys.ring_changes


def _key_help(wanted: argparse.Namespace) -> str:
    if wanted.action == "show":
        return key_help("--key", wanted.key)
    return "to change a ring set ROPEWALK_SECRET, or ROPEWALK_RING_KEY where the nodes have it, to the value of the nodes"


# --- of a running server ---------------------------------------------------------------------------------------------


def _change(wanted: argparse.Namespace) -> dict[str, object] | None:
    if wanted.action == "add":
        try:
            member_of(wanted.node)
        except ValueError as error:
            raise UserMistake(str(error)) from None
        return {"add": wanted.node}
    return {"remove": wanted.node, "lost": wanted.lost} if wanted.action == "remove" else None


async def _asked(
    url: str, key: str, tls: ssl.SSLContext | None, change: dict[str, object] | None, stream: str
) -> tuple[int, bytes]:
    place = addresses(url).base + PATH
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with http_session(tls) as http:
            return await _exchanged(http, place, headers, change, {"stream": stream} if stream else {})
    except (ClientError, OSError) as error:
        raise connection_error(place, error) from error


async def _exchanged(
    http: ClientSession, place: str, headers: dict[str, str], change: dict[str, object] | None, query: dict[str, str]
) -> tuple[int, bytes]:
    method, limit = "GET" if change is None else "POST", ClientTimeout(total=SECONDS)
    async with http.request(method, place, headers=headers, timeout=limit, json=change, params=query) as response:
        return response.status, await response.read()


def _report(status: int, body: bytes) -> RingReport:
    if status == 404:
        raise UserMistake("this server is not a node of a ring: it was started without --ring")
    if status != 200:
        raise RopewalkError(_reason(body) or f"the server answered with status {status}")
    try:
        return msgspec.json.decode(body, type=RingReport)
    except msgspec.MsgspecError as error:
        raise RopewalkError(f"the server's answer cannot be read: {error}") from None


def _reason(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=dict[str, object]).get("error", "")  # type: ignore[return-value]
    except msgspec.MsgspecError:
        return ""


# --- of one that is only thought of ----------------------------------------------------------------------------------


def _plan(wanted: argparse.Namespace) -> None:
    names = [name.strip() for name in wanted.members.split(",")]
    shards = load([], os.environ).journal.journal_shards if wanted.shards is None else wanted.shards
    if "" in names or len(set(names)) < len(names) or shards < 1:
        raise UserMistake("--members wants different names, separated by commas, and --shards more than 0")
    before = first_table((RingMember(name, "") for name in names), shards)
    after = _after(before, wanted.join, wanted.leave)
    print(_as_json(before, after, wanted.stream) if wanted.json else ring_drawing.plan(before, after, wanted.stream))


def _after(before: RingTable, join: str, leave: str) -> RingTable | None:
    if join:
        if before.member(join) is not None:
            raise UserMistake(f"--join names {join}, which is one of --members")
        return joined(before, RingMember(join, ""))
    if leave:
        if before.member(leave) is None:
            raise UserMistake(f"--leave names {leave}, which is none of --members")
        return removed(before, leave)
    return None


def _as_json(before: RingTable, after: RingTable | None, stream: str) -> str:
    shown: dict[str, object] = {"owners": before.owners}
    if stream:
        shown["place"] = place_in(before if after is None else after, stream)
    if after is not None:
        shown |= {"after": after.owners, "moves": moves(before, after)}
    return msgspec.json.encode(shown).decode()
