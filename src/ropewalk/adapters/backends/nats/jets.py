"""Creates JetStream streams and writes messages to them, on conditions.

Invariant: an existing stream keeps its configuration, except that its replicas and messages per subject can grow.
"""

from collections.abc import Mapping, Sequence
from secrets import token_hex
from typing import Any

from msgspec import Struct

from ropewalk.adapters.backends.nats.link import NO_STREAM, WRONG_LAST_SEQUENCE, ApiError, NatsLink
from ropewalk.model.errors import Unavailable

NAME_IN_USE = 10058
MAX_BATCH = 1000
"""NATS's limit of messages in an atomic batch."""

TTL_SLACK = 60
"""Added to TTLs, in seconds. Ropewalk expires records by its own clock; NATS only removes leftovers."""


class JetWrite(Struct, frozen=True):
    """A message to store. `expected`: the sequence of the subject's last message, 0 for none; None for no condition."""

    subject: str
    data: bytes
    expected: int | None = None
    ttl: float | None = None

    def headers(self) -> dict[str, str]:
        headers = {}
        if self.expected is not None:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(self.expected)
        if self.ttl is not None:
            headers["Nats-TTL"] = str(int(self.ttl) + TTL_SLACK)
        return headers


class WriteConflict(Exception):
    """Another node wrote first. Nothing was stored."""


async def store(link: NatsLink, writes: Sequence[JetWrite]) -> int:
    """Store all of them or none. Returns the sequence of the last. Raises `WriteConflict`, `Unavailable`, `Unanswered`."""
    try:
        if len(writes) == 1:
            return await link.publish(writes[0].subject, writes[0].data, writes[0].headers())
        batch = token_hex(12)
        *before, last = [
            (write, {**write.headers(), "Nats-Batch-Id": batch, "Nats-Batch-Sequence": str(number)})
            for number, write in enumerate(writes, 1)
        ]
        for write, headers in before:
            await link.send(write.subject, write.data, headers)
        return await link.publish(last[0].subject, last[0].data, {**last[1], "Nats-Batch-Commit": "1"})
    except ApiError as error:
        if error.code in WRONG_LAST_SEQUENCE:
            raise WriteConflict(str(error)) from None
        raise Unavailable(f"JetStream refuses: {error}") from None


async def info(link: NatsLink, jet: str, question: object = None) -> Any:
    """Returns None if the stream does not exist. Raises `Unavailable`, `Unanswered`."""
    try:
        return await link.api(f"STREAM.INFO.{jet}", question)
    except ApiError as error:
        if error.code == NO_STREAM:
            return None
        raise Unavailable(f"JetStream refuses: {error}") from None


async def ensure(link: NatsLink, config: Mapping[str, Any]) -> Any:
    """Create the stream if it is missing. Returns its `info`."""
    found = await info(link, config["name"]) or await _create(link, config)
    if config["allow_atomic"] and not found["config"].get("allow_atomic"):
        raise Unavailable("nats-server does not support atomic batches; use 2.12 or newer")
    wanted = {name: max(found["config"][name], config[name]) for name in ("num_replicas", "max_msgs_per_subject")}
    if not wanted.items() <= found["config"].items():
        return await update(link, {**found["config"], **wanted})
    return found


async def _create(link: NatsLink, config: Mapping[str, Any]) -> Any:
    jet = config["name"]
    try:
        return await link.api(f"STREAM.CREATE.{jet}", config)
    except ApiError as error:
        if error.code != NAME_IN_USE:
            raise Unavailable(f"JetStream cannot create the stream {jet}: {error}") from None
        return await info(link, jet)  # another node created it with other settings


async def update(link: NatsLink, config: Mapping[str, Any]) -> Any:
    try:
        return await link.api(f"STREAM.UPDATE.{config['name']}", config)
    except ApiError as error:
        raise Unavailable(f"JetStream cannot update the stream {config['name']}: {error}") from None


def config(jet: str, subjects: Sequence[str], replicas: int, most: int, **more: Any) -> dict[str, Any]:
    return {
        "name": jet,
        "subjects": list(subjects),
        "retention": "limits",
        "storage": "file",
        "discard": "old",
        "num_replicas": replicas,
        "max_msgs_per_subject": most,
        "allow_direct": True,
        "allow_msg_ttl": True,
        "allow_atomic": True,
        **more,
    }
