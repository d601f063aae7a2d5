"""The layout of a store in NATS: its options, and the names of JetStream streams and subjects.

Invariant: a name of ours is one token of a subject, whatever characters it has, and two names never share a token.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

from msgspec import Struct

from ropewalk.adapters.backends.nats.link import NatsLink

LONGEST = 180
"""Bytes of a name that stand in a subject as they are. A control line of NATS has 4096 bytes at the most."""

HASHED = "="
"""Begins the token of a longer name: no character of base64url, so that it cannot be that of a short one."""


class NatsOptions(Struct, frozen=True):
    """Options of the NATS backend.

    Args:
        prefix: of all subjects and JetStream streams.
        shards: of a new store; later nodes take the number that they find.
        replicas: of every JetStream stream.
        count_seconds: how often what is kept is counted for metrics.
        timeout: of a request.
        patience: how long an append without an answer is tried: longer than most elections of a leader.
        link_type: of the connection.
    """

    prefix: str = "rw"
    shards: int = 8
    replicas: int = 1
    count_seconds: float = 15.0
    timeout: float = 2.0
    patience: float = 8.0
    link_type: type[NatsLink] = NatsLink


def token(name: str) -> str:
    """base64url of the name without padding; of a longer one its SHA-256. An empty name has a token too."""
    raw = name.encode(errors="surrogatepass")
    if len(raw) > LONGEST:
        return HASHED + _base64(sha256(raw).digest())
    return _base64(raw) or HASHED


def pair_token(first: str, second: str) -> str:
    """One token for two names. The length keeps `a:b` and `c` apart from `a` and `b:c`."""
    return token(f"{len(first)} {first}{second}")


def name_of(token_: str) -> str | None:
    """The name behind a token; None where only its hash is known."""
    if token_ == HASHED:
        return ""
    if token_.startswith(HASHED):
        return None
    return urlsafe_b64decode(token_ + "=" * (-len(token_) % 4)).decode(errors="surrogatepass")


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


class ShardNames:
    """Of one shard. `generation` counts how often its end was lost; only the subjects of messages have it, so that writers who
    do not know of the loss are refused, while idempotency keys that survived are still known."""

    def __init__(self, prefix: str, shard: int) -> None:
        self.jet = f"{prefix.upper()}_{shard}"
        self.ingest = f"{prefix}.i.{shard}"
        self.any_stream = f"{self.ingest}.*.s.*"
        self.witnesses = f"{prefix}.w.{shard}"
        self._out = f"{prefix}.o.{shard}"

    def subjects(self, generation: int) -> list[str]:
        return [f"{self.ingest}.g{generation}.s.>", f"{self.ingest}.u.*", f"{self.ingest}.p.*"]

    def republish(self, generation: int) -> dict[str, str]:
        return {"src": f"{self.ingest}.g{generation}.s.>", "dest": f"{self._out}.g{generation}.s.>"}

    def stream(self, generation: int, name: str) -> str:
        return f"{self.ingest}.g{generation}.s.{token(name)}"

    def streams(self, generation: int) -> str:
        return f"{self.ingest}.g{generation}.s.*"

    def uid(self, stream: str, uid: str) -> str:
        return f"{self.ingest}.u.{pair_token(stream, uid)}"

    @property
    def uids(self) -> str:
        return f"{self.ingest}.u.*"

    @property
    def probe(self) -> str:
        """Of messages that only show that they can be stored. No name has this token."""
        return f"{self.ingest}.p.-"

    def producer(self, name: str) -> str:
        return f"{self.ingest}.p.{token(name)}"

    def live(self, stream: str) -> str:
        """Where messages of a stream are republished, whatever the generation."""
        return f"{self._out}.*.s.{token(stream)}"

    def live_in(self, generation: int, stream: str) -> str:
        return f"{self._out}.g{generation}.s.{token(stream)}"
