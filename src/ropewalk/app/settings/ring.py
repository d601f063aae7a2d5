"""Checks and reads the settings of a ring. Every refusal says what to set instead."""

import socket

from ropewalk.app.settings.sections import Settings
from ropewalk.core.ring_members import member_of
from ropewalk.model.errors import UserMistake
from ropewalk.model.ring import RingMember

LEASE_STORES = ("redis", "nats")

MIN_KEY_CHARACTERS = 16

WILDCARDS = ("0.0.0.0", "::", "[::]")


def lease_store_of(settings: Settings) -> str:
    """Which store nodes find each other by; "" where the settings name them."""
    return next((store for store in LEASE_STORES if settings.ring.ring == (store,)), "")


def members_of(settings: Settings) -> tuple[RingMember, ...]:
    """Nobody where this server is alone, and this node only where the others are found by leases. Raises UserMistake."""
    if lease_store_of(settings):
        return (_found_by_lease(settings),)
    try:
        members = tuple(map(member_of, settings.ring.ring))
    except ValueError as error:
        stores = " or ".join(LEASE_STORES)
        raise UserMistake(f"--ring wants its nodes separated by commas, or {stores} to find them by; {error}") from None
    for kind, values in (("name", [each.name for each in members]), ("address", [each.address for each in members])):
        twice = {value for value in values if values.count(value) > 1}
        if twice:
            raise UserMistake(f"--ring has two nodes with the same {kind}, {min(twice)}")
    return members


def _found_by_lease(settings: Settings) -> RingMember:
    ring, server = settings.ring, settings.server
    name = ring.ring_node or server.node_id or socket.gethostname()
    host = f"[{server.host}]" if ":" in server.host and not server.host.startswith("[") else server.host
    if not ring.ring_address and (server.host in WILDCARDS or not server.port):
        given = f"--port is {server.port}" if not server.port else f"--host is {server.host}"
        raise UserMistake(
            f"at which address do other nodes of the ring reach this one? {given}, which does not say it: set"
            " --ring_address, such as 10.0.0.1:8080"
        )
    try:
        return member_of(f"{name}={ring.ring_address or f'{host}:{server.port}'}")
    except ValueError as error:
        raise UserMistake(f"--ring_node and --ring_address are this node of the ring; {error}") from None


def node_of(settings: Settings) -> str:
    """The name of this server among them. Raises UserMistake."""
    if lease_store_of(settings):
        return _found_by_lease(settings).name
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
        for flag in ("ring_node", "ring_address", "ring_key"):
            if getattr(settings.ring, flag):
                raise UserMistake(f"--{flag} is set, and --ring is not: name the nodes of the ring, such as a=10.0.0.1:8080")
        return
    if settings.ring.ring_address and not lease_store_of(settings):
        raise UserMistake("--ring has the addresses of all nodes, this one included: leave --ring_address away")
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
