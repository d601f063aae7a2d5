"""Checks and reads the settings of a ring. Every refusal says what to set instead."""

import socket

from ropewalk.app.settings.sections import Settings
from ropewalk.core.ring_members import member_of
from ropewalk.model.errors import UserMistake
from ropewalk.model.ring import RingMember

MIN_KEY_CHARACTERS = 16


def members_of(settings: Settings) -> tuple[RingMember, ...]:
    """The nodes that the settings name; empty for a server alone. Raises UserMistake."""
    try:
        members = tuple(map(member_of, settings.ring.ring))
    except ValueError as error:
        withdrawn = settings.ring.ring in (("redis",), ("nats",))
        hint = f" (to share state in {settings.ring.ring[0]}, use --broker={settings.ring.ring[0]})" if withdrawn else ""
        raise UserMistake(f"--ring must list nodes as name=host:port, separated by commas{hint}; {error}") from None
    for kind, values in (("name", [each.name for each in members]), ("address", [each.address for each in members])):
        twice = {value for value in values if values.count(value) > 1}
        if twice:
            raise UserMistake(f"--ring has two nodes with the same {kind}, {min(twice)}")
    return members


def node_of(settings: Settings) -> str:
    """The name of this server among them. Raises UserMistake."""
    names = [member.name for member in members_of(settings)]
    asked = settings.ring.ring_node or settings.server.node_id
    if asked in names:
        return asked
    known = ", ".join(names)
    if asked:
        flag = "--ring_node" if settings.ring.ring_node else "--node_id"
        raise UserMistake(f"{flag} is {asked}, and --ring has no such node, only {known}")
    host = socket.gethostname()
    for name in (host, host.partition(".")[0]):
        if name in names:
            return name
    raise UserMistake(f"which node of the ring is this server? Set --ring_node to one of: {known}")


def require_ring(settings: Settings) -> None:
    """Raises UserMistake."""
    if not settings.ring.ring:
        for flag in ("ring_node", "ring_key"):
            if getattr(settings.ring, flag):
                raise UserMistake(f"--{flag} is set, and --ring is not: name the nodes of the ring, such as a=10.0.0.1:8080")
        return
    for is_so, why in _not_with(settings):
        if is_so:
            raise UserMistake(why)
    node_of(settings)
    shards = settings.journal.journal_shards
    if len(settings.ring.ring) > shards:
        raise UserMistake(
            f"a ring of {len(settings.ring.ring)} nodes needs as many shards: raise --journal_shards, now {shards}"
        )


def _not_with(settings: Settings) -> list[tuple[bool, str]]:
    server, broker = settings.server, settings.broker.broker
    return [
        (
            broker != "memory",
            f"--ring joins the memory of several servers, and --broker={broker} already keeps everything for all of them: "
            "leave one of the two away",
        ),
        (
            settings.auth.secret in ("", "none"),
            "--ring needs --secret, the same one at all nodes: keys that they share are derived from it",
        ),
        (
            bool(settings.ring.ring_key) and len(settings.ring.ring_key) < MIN_KEY_CHARACTERS,
            f"--ring_key must have at least {MIN_KEY_CHARACTERS} characters, because clients that reach a node can test "
            "guesses of it; `openssl rand -hex 32` makes one",
        ),
        (
            server.host.startswith("unix:"),
            "nodes of a ring reach each other over TCP: set --host to an address, and not to a Unix socket",
        ),
        (server.takeover, "--takeover is for a server alone: stop a node of a ring, start it again, and its clients resume"),
        (
            bool(settings.archive.archive_dir),
            "--archive_dir needs a journal of all streams, and a node of a ring has one of its own shards: leave it away",
        ),
    ]
