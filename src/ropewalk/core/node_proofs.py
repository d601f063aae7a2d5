"""How two nodes of a ring prove to each other that they have its key: challenge and response over the nonces of both.

Invariant: the key is never sent, and a proof is good for one direction of one connection. It is an HMAC over a version label,
the role of its sender, both nonces and the names of both, so it can be neither replayed nor reflected.

```
dialler → node    Challenge(nonce)
node → dialler    ChallengeResponse(nonce, node, proof)   the dialled node proves the key first, and which node it is
dialler → node    DiallerProof(process, proof)
node → dialler    an empty message as the welcome, or a Rejection at any step
```
"""

import hmac
import secrets
from typing import TypeVar

import msgspec
from msgspec import Struct

from ropewalk.model.errors import NotProven

PROTOCOL = "ropewalk ring link"
LABEL = f"{PROTOCOL} 2"
NONCE_BYTES = 32
MAX_REASON_CHARACTERS = 200
WELCOME = b""

_NODE, _DIALLER = "node", "dialler"

T = TypeVar("T")


class Challenge(Struct, frozen=True, tag=LABEL, forbid_unknown_fields=True):
    nonce: bytes


class ChallengeResponse(Struct, frozen=True, tag="response", forbid_unknown_fields=True):
    nonce: bytes
    node: str
    proof: bytes


class DiallerProof(Struct, frozen=True, tag="proof", forbid_unknown_fields=True):
    process: str
    proof: bytes


class Rejection(Struct, frozen=True, tag="rejection", forbid_unknown_fields=True):
    reason: str


_CHALLENGE = msgspec.msgpack.Decoder(Challenge)
_PROOF = msgspec.msgpack.Decoder(DiallerProof)
_REJECTION = msgspec.msgpack.Decoder(Rejection)
_RESPONSE: "msgspec.msgpack.Decoder[ChallengeResponse | Rejection]" = msgspec.msgpack.Decoder(ChallengeResponse | Rejection)


class DiallingNode:
    """The end that connects.

    Args:
        key: the key of the ring.
        node: the name of the node that should answer.
        process: the name of this process.
    """

    def __init__(self, key: str, node: str, process: str) -> None:
        self._key = key
        self._node = node
        self._process = process
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self.challenge = msgspec.msgpack.encode(Challenge(self._nonce))

    def prove(self, response: bytes) -> bytes:
        """Check the response, and return the proof to send. Raises NotProven."""
        answer = _decode(response, _RESPONSE)
        if isinstance(answer, Rejection):
            raise _refused(answer)
        expected = _sign(self._key, _NODE, self._nonce, answer.nonce, answer.node)
        if not hmac.compare_digest(answer.proof, expected):
            raise NotProven("it does not have the key of this ring: do both have the same --secret and --ring_key?")
        if answer.node != self._node:
            raise NotProven(f"the node at this address is {answer.node}, not {self._node}")
        proof = _sign(self._key, _DIALLER, self._nonce, answer.nonce, answer.node, self._process)
        return msgspec.msgpack.encode(DiallerProof(self._process, proof))

    def require_welcome(self, answer: bytes) -> None:
        """Check the answer to the proof. Raises NotProven."""
        if answer != WELCOME:
            raise _refused(_decode(answer, _REJECTION))


class DialledNode:
    """The end that was connected to; one for each connection.

    Args:
        key: the key of the ring.
        node: the name of this node.
    """

    def __init__(self, key: str, node: str) -> None:
        self._key = key
        self._node = node
        self._nonce = secrets.token_bytes(NONCE_BYTES)
        self._dialler_nonce = b""

    def respond(self, challenge: bytes) -> bytes:
        """Raises NotProven."""
        if is_greeting(challenge) and LABEL.encode() not in challenge:
            raise NotProven("the two nodes run different releases of Ropewalk: run the same release at all nodes")
        self._dialler_nonce = _nonce(_decode(challenge, _CHALLENGE).nonce)
        proof = _sign(self._key, _NODE, self._dialler_nonce, self._nonce, self._node)
        return msgspec.msgpack.encode(ChallengeResponse(self._nonce, self._node, proof))

    def verify(self, proof: bytes) -> None:
        """Raises NotProven."""
        received = _decode(proof, _PROOF)
        expected = _sign(self._key, _DIALLER, self._dialler_nonce, self._nonce, self._node, received.process)
        if not self._dialler_nonce or not hmac.compare_digest(received.proof, expected):
            raise NotProven("it does not have the key of this ring")


def is_greeting(message: bytes) -> bool:
    """Whether a first message is the challenge of a node, of this or another release. Nothing else gets an answer."""
    return PROTOCOL.encode() in message


def encode_rejection(reason: str) -> bytes:
    return msgspec.msgpack.encode(Rejection(reason))


def _refused(rejection: Rejection) -> NotProven:
    return NotProven(f"it refuses this node: {rejection.reason[:MAX_REASON_CHARACTERS]}")


def _decode(data: bytes, decoder: "msgspec.msgpack.Decoder[T]") -> T:
    try:
        return decoder.decode(data)
    except msgspec.MsgspecError as error:
        raise NotProven(f"malformed greeting of a ring node: {error}") from None


def _nonce(nonce: bytes) -> bytes:
    if len(nonce) != NONCE_BYTES:
        raise NotProven(f"a nonce must have {NONCE_BYTES} bytes, not {len(nonce)}")
    return nonce


def _sign(key: str, role: str, dialler_nonce: bytes, node_nonce: bytes, node: str, process: str = "") -> bytes:
    """msgpack has lengths, so no two different tuples are the same bytes. Raises ValueError without a key."""
    if not key:
        raise ValueError("a ring link needs a key")
    signed = msgspec.msgpack.encode((LABEL, role, dialler_nonce, _nonce(node_nonce), node, process))
    return hmac.digest(key.encode("utf-8", "surrogateescape"), signed, "sha256")
