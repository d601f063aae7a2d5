"""The layout of a store in NATS: its options, and the names of JetStream streams and subjects.

Invariant: any name becomes one token of a subject, and two names never share a token.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import sha256

from msgspec import Struct

from ropewalk.adapters.backends.nats.link import NatsLink

MAX_PLAIN_BYTES = 180
"""Longer names are hashed. A control line of NATS has at most 4096 bytes."""

HASHED = "="
"""First character of the token of a longer name. It is not in base64url, so tokens of short names never have it."""


class NatsOptions(Struct, frozen=True):
    """Options of the NATS backend.

    Args:
        prefix: of all subjects and JetStream streams.
        shards: number of shards of a new store; an existing store keeps its number.
        replicas: of every JetStream stream.
        count_seconds: interval between counts for the metrics.
        timeout: of a request.
        retry_seconds: how long an unanswered append is retried; longer than most leader elections.
        link_type: of the connection.
    """

    prefix: str = "rw"
    shards: int = 8
    replicas: int = 1
    count_seconds: float = 15.0
    timeout: float = 2.0
    retry_seconds: float = 8.0
    link_type: type[NatsLink] = NatsLink


def token(name: str) -> str:
    """base64url without padding of the name, or of its SHA-256 if it is long. An empty name has a token too."""
    raw = name.encode(errors="surrogatepass")
    if len(raw) > MAX_PLAIN_BYTES:
        return HASHED + _base64(sha256(raw).digest())
    return _base64(raw) or HASHED


def pair_token(first: str, second: str) -> str:
    """One token for two names. The length keeps `a:b` and `c` apart from `a` and `b:c`."""
    return token(f"{len(first)} {first}{second}")


def decode_token(token_: str) -> str | None:
    """The name of a token; None if the token is a hash."""
    if token_ == HASHED:
        return ""
    if token_.startswith(HASHED):
        return None
    return urlsafe_b64decode(token_ + "=" * (-len(token_) % 4)).decode(errors="surrogatepass")


def _base64(raw: bytes) -> str:
    return urlsafe_b64encode(raw).decode().rstrip("=")


class ShardNames:
    """The names of one shard. `generation` changes when messages were lost. Only subjects of messages contain it: writers with
    an old generation are rejected, while surviving idempotency keys stay valid."""

    def __init__(self, prefix: str, shard: int) -> None:
        self.jet = f"{prefix.upper()}_{shard}"
        self.ingest = f"{prefix}.i.{shard}"
        self.any_stream = f"{self.ingest}.*.s.*"
        self.tip_requests = f"{prefix}.w.{shard}"
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
        """The subject of probe messages. No name has this token."""
        return f"{self.ingest}.p.-"

    def producer(self, name: str) -> str:
        return f"{self.ingest}.p.{token(name)}"

    def live(self, stream: str) -> str:
        """Where messages of a stream are republished in any generation."""
        return f"{self._out}.*.s.{token(stream)}"

    def live_in(self, generation: int, stream: str) -> str:
        return f"{self._out}.g{generation}.s.{token(stream)}"
