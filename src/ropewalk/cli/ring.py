"""`ropewalk ring`: draws the ring of a running server, adds and removes nodes, and shows changes as a dry run."""

import argparse
import asyncio
import os
import ssl
from collections import Counter
from collections.abc import Sequence

import msgspec
from aiohttp import ClientError, ClientSession, ClientTimeout
from msgspec import UNSET

from ropewalk.app.keys import derive_keys
from ropewalk.app.settings import load
from ropewalk.cli.reaching import add_flags, explained, key_help, url_of
from ropewalk.client.addresses import addresses
from ropewalk.client.tls import connection_error, http_session, tls_context
from ropewalk.core.ring import parse_member
from ropewalk.core.ring_table import add_member, build_first_table, count_owned, find_place, list_moves, remove_member
from ropewalk.model.errors import RopewalkError, UserMistake
from ropewalk.model.ring import RingMember, RingNode, RingPlace, RingReport, RingTable

SUMMARY = "show a ring of nodes, and change it"

PATH = "/api/ring"
TIMEOUT_SECONDS = 10.0

BAR_LENGTH = 40
"""Characters for a node that owns all shards."""


def run(argv: list[str]) -> int:
    parser = _parser()
    wanted = parser.parse_args(argv)
    _check_arguments(wanted)
    if wanted.members:
        _plan(wanted)
        return 0
    key = wanted.key if wanted.key is not None else _key_of_settings(wanted.action)
    with explained():
        status, body = asyncio.run(
            _request(url_of(wanted.url), key, tls_context(wanted.ca_file), _change(wanted), wanted.stream)
        )
    if status == 401:
        raise UserMistake(f"the key is not accepted; {_key_help(wanted)}")
    report = _report(status, body)
    print(msgspec.json.encode(report).decode() if wanted.json else draw_report(report))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="ropewalk ring", description=SUMMARY, allow_abbrev=False)
    parser.add_argument("action", nargs="?", choices=("show", "add", "remove"), default="show", help="show is the default")
    parser.add_argument("node", metavar="NODE", nargs="?", default="", help="name=host:port to add, or the name to remove")
    parser.add_argument(
        "--lost", action="store_true", help="remove a node that is gone for good: its shards restart empty at other nodes"
    )
    add_flags(parser)
    parser.add_argument(
        "--key",
        help="bearer key of the API, by default ROPEWALK_API_SECRET, or derived from ROPEWALK_SECRET; to add and remove: the"
        " key for changes, by default derived from ROPEWALK_RING_KEY or ROPEWALK_SECRET",
    )
    parser.add_argument("--stream", default="", metavar="NAME", help="also show the shard and the node of this stream")
    parser.add_argument("--json", action="store_true", help="print JSON")
    offline = parser.add_argument_group("dry run, without a server")
    offline.add_argument("--members", default="", metavar="A,B,C", help="names of the nodes")
    offline.add_argument("--shards", type=int, help="number of shards (default: --journal_shards of the settings)")
    change = offline.add_mutually_exclusive_group()
    change.add_argument("--join", default="", metavar="D", help="also show which shards would move if this node joined")
    change.add_argument("--leave", default="", metavar="B", help="also show which shards would move if this node left")
    return parser


def _check_arguments(wanted: argparse.Namespace) -> None:
    if (wanted.action == "show") == bool(wanted.node):
        raise UserMistake("write `ropewalk ring`, `ropewalk ring add NAME=HOST:PORT` or `ropewalk ring remove NAME`")
    if wanted.lost and wanted.action != "remove":
        raise UserMistake("--lost is for `ropewalk ring remove`")
    if wanted.stream and wanted.action != "show":
        raise UserMistake(f"--stream is not for {wanted.action}: run `ropewalk ring --stream NAME`")
    if wanted.members and wanted.action != "show":
        raise UserMistake(f"--members is a dry run: {wanted.action} needs a server (--url)")
    if (wanted.join or wanted.leave or wanted.shards is not None) and not wanted.members:
        raise UserMistake("--join, --leave and --shards need --members")


def _key_of_settings(action: str) -> str:
    keys = derive_keys(load([], os.environ))
    return (keys.api or "") if action == "show" else keys.ring_changes


def _key_help(wanted: argparse.Namespace) -> str:
    if wanted.action == "show":
        return key_help("--key", wanted.key)
    return "to change a ring, set ROPEWALK_SECRET or ROPEWALK_RING_KEY to the value that the nodes have"


# --- a running server -------------------------------------------------------------------------------------------------


def _change(wanted: argparse.Namespace) -> dict[str, object] | None:
    if wanted.action == "add":
        try:
            parse_member(wanted.node)
        except ValueError as error:
            raise UserMistake(str(error)) from None
        return {"add": wanted.node}
    return {"remove": wanted.node, "lost": wanted.lost} if wanted.action == "remove" else None


async def _request(
    url: str, key: str, tls: ssl.SSLContext | None, change: dict[str, object] | None, stream: str
) -> tuple[int, bytes]:
    place = addresses(url).base + PATH
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        async with http_session(tls) as http:
            return await _exchange(http, place, headers, change, {"stream": stream} if stream else {})
    except (ClientError, OSError) as error:
        raise connection_error(place, error) from error


async def _exchange(
    http: ClientSession, place: str, headers: dict[str, str], change: dict[str, object] | None, query: dict[str, str]
) -> tuple[int, bytes]:
    method, limit = "GET" if change is None else "POST", ClientTimeout(total=TIMEOUT_SECONDS)
    async with http.request(method, place, headers=headers, timeout=limit, json=change, params=query) as response:
        return response.status, await response.read()


def _report(status: int, body: bytes) -> RingReport:
    if status == 404:
        raise UserMistake("this server is not a node of a ring: it was started without --ring")
    if status != 200:
        raise RopewalkError(_reason(body) or f"the server responded with status {status}")
    try:
        return msgspec.json.decode(body, type=RingReport)
    except msgspec.MsgspecError as error:
        raise RopewalkError(f"the server's response cannot be read: {error}") from None


def _reason(body: bytes) -> str:
    try:
        return msgspec.json.decode(body, type=dict[str, object]).get("error", "")  # type: ignore[return-value]
    except msgspec.MsgspecError:
        return ""


# --- dry run ----------------------------------------------------------------------------------------------------------


def _plan(wanted: argparse.Namespace) -> None:
    names = [name.strip() for name in wanted.members.split(",")]
    shards = load([], os.environ).journal.journal_shards if wanted.shards is None else wanted.shards
    if "" in names or len(set(names)) < len(names) or shards < 1:
        raise UserMistake("--members must be different names, separated by commas, and --shards at least 1")
    before = build_first_table((RingMember(name, "") for name in names), shards)
    after = _after(before, wanted.join, wanted.leave)
    print(_as_json(before, after, wanted.stream) if wanted.json else draw_plan(before, after, wanted.stream))


def _after(before: RingTable, join: str, leave: str) -> RingTable | None:
    if join:
        if before.member(join) is not None:
            raise UserMistake(f"--join names {join}, which is one of --members")
        return add_member(before, RingMember(join, ""))
    if leave:
        if before.member(leave) is None:
            raise UserMistake(f"--leave names {leave}, which is not one of --members")
        return remove_member(before, leave)
    return None


def _as_json(before: RingTable, after: RingTable | None, stream: str) -> str:
    shown: dict[str, object] = {"owners": before.owners}
    if stream:
        shown["place"] = find_place(before if after is None else after, stream)
    if after is not None:
        shown |= {"after": after.owners, "moves": list_moves(before, after)}
    return msgspec.json.encode(shown).decode()


# --- drawing: a line for each node, with a bar for its share ------------------------------------------------------------


def draw_report(ring: RingReport) -> str:
    size = f"{_count(ring.shards, 'shard')} on {_count(len(ring.nodes), 'node')}"
    rows = [("node", "address", "state", "owns", "holds", "share", "")]
    for node in ring.nodes:
        rows.append((node.name, node.address, _describe_state(node), str(node.owns), str(node.holds), *_draw_share(node.share)))
    lines = [f"A ring of {size}: term {ring.term}, seen by {ring.node}", "", *_columns(rows)]
    if ring.waits_for:
        lines += ["", f"{ring.node} waits for its ring: {ring.waits_for}"]
    held = sum(node.holds for node in ring.nodes)
    if ring.moving and held:
        lines += ["", f"{_count(ring.moving, 'shard')} moving to another node"]
    if ring.unavailable and held:
        lines += ["", *_describe_unavailable(ring.unavailable, min(ring.shards - held, ring.unavailable))]
    if ring.place is not UNSET:
        lines += ["", _describe_place(ring.place)]
    return "\n".join(lines)


def draw_plan(before: RingTable, after: RingTable | None, stream: str = "") -> str:
    """A table, and the one after a change. `stream`: show its place in the last of them."""
    lines = _draw_table(before)
    place = ["", _describe_place(find_place(before if after is None else after, stream))] if stream else []
    if after is None:
        return "\n".join([*lines, *place])
    moved = list_moves(before, after)
    routes = Counter((move.source, move.target) for move in moved)
    share = len(moved) / before.shards
    lines += ["", f"{_count(len(moved), 'shard')} of {before.shards} would move ({share:.1%}):"]
    lines += _columns([(f"{source} → {target}", str(number)) for (source, target), number in sorted(routes.items())])
    return "\n".join([*lines, "", *_draw_table(after), *place])


def _draw_table(table: RingTable) -> list[str]:
    owned = {name: number for name, number in count_owned(table).items() if number}
    head = f"{_count(table.shards, 'shard')} on {_count(len(owned), 'node')}"
    rows = [(name, str(number), *_draw_share(number / table.shards)) for name, number in owned.items()]
    return [head, "", *_columns([("node", "owns", "share", ""), *rows])]


def _describe_unavailable(number: int, unheld: int) -> list[str]:
    """`unheld`: the number of shards without a known holder."""
    reasons = {"their node does not respond": number - unheld, "no node holds them yet": unheld}
    return [f"{_count(count, 'shard')} unavailable: {reason}" for reason, count in reasons.items() if count]


def _describe_place(place: RingPlace) -> str:
    held = f" and held by {place.holder}" if place.holder else ""
    return f"{place.stream} is in shard {place.shard}, owned by {place.owner}{held}"


def _describe_state(node: RingNode) -> str:
    state = "alive" if node.alive else "away"
    return f"{state}, leaving" if node.leaving else state


def _draw_share(share: float) -> tuple[str, str]:
    return f"{share:.1%}", "█" * round(share * BAR_LENGTH)


def _count(number: int, what: str) -> str:
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def _columns(rows: Sequence[tuple[str, ...]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
