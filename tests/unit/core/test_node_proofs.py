"""Challenge and response between two nodes of a ring, against peers without the key and recordings of other links."""

import msgspec
import pytest

from ropewalk.core.node_proofs import NONCE_BYTES, DialledNode, DiallingNode
from ropewalk.model.errors import NotProven

KEY = "key of the ring"


def dialling(key: str = KEY, node: str = "b") -> DiallingNode:
    return DiallingNode(key, node, "a~1")


def dialled(key: str = KEY, node: str = "b") -> DialledNode:
    return DialledNode(key, node)


def test_nodes_with_the_same_key_prove_it_without_sending_it() -> None:
    a, b = dialling(), dialled()
    sent = [a.challenge, b.respond(a.challenge)]
    sent.append(a.prove(sent[1]))
    b.verify(sent[2])
    assert not any(KEY.encode() in message for message in sent)


def test_challenge_has_nothing_but_a_version_and_a_new_nonce() -> None:
    challenges = [dialling().challenge for _ in range(2)]
    said = [msgspec.msgpack.decode(challenge) for challenge in challenges]
    assert [(set(each), len(each["nonce"])) for each in said] == [({"type", "nonce"}, NONCE_BYTES)] * 2
    assert challenges[0] != challenges[1]


def test_response_with_another_key_is_refused() -> None:
    a = dialling()
    with pytest.raises(NotProven, match="does not have the key of this ring"):
        a.prove(dialled("another key").respond(a.challenge))


def test_response_of_another_node_is_refused() -> None:
    a = dialling(node="c")
    with pytest.raises(NotProven, match="the node at this address is b, not c"):
        a.prove(dialled(node="b").respond(a.challenge))


def test_response_with_another_name_than_it_was_signed_for_is_refused() -> None:
    a = dialling(node="c")
    response = msgspec.msgpack.decode(dialled(node="b").respond(a.challenge))
    with pytest.raises(NotProven, match="does not have the key"):
        a.prove(msgspec.msgpack.encode({**response, "node": "c"}))


def test_response_to_another_challenge_is_refused() -> None:
    recorded = dialled().respond(dialling().challenge)
    with pytest.raises(NotProven, match="does not have the key"):
        dialling().prove(recorded)


def test_proof_with_another_key_is_refused() -> None:
    """The attacker copies what it can see, and signs with a key of its own."""
    b, stranger = dialled(), dialling("another key")
    nonce = msgspec.msgpack.decode(b.respond(stranger.challenge))["nonce"]
    own = DialledNode("another key", "b")
    own._nonce = nonce
    with pytest.raises(NotProven):
        b.verify(stranger.prove(own.respond(stranger.challenge)))


def test_replayed_proof_is_refused() -> None:
    """Also with the challenge that it was made for: the nonce of the dialled node is another one."""
    a, b = dialling(), dialled()
    proof = a.prove(b.respond(a.challenge))
    b.verify(proof)
    again = dialled()
    again.respond(a.challenge)
    with pytest.raises(NotProven):
        again.verify(proof)


def test_proof_of_another_process_name_is_refused() -> None:
    a, b = dialling(), dialled()
    proof = msgspec.msgpack.decode(a.prove(b.respond(a.challenge)))
    with pytest.raises(NotProven):
        b.verify(msgspec.msgpack.encode({**proof, "process": "c~1"}))


def test_reflected_response_is_refused() -> None:
    """A node without the key sends the challenge back to the dialler, at its own port, and returns what that answers."""
    a, a_itself, b = dialling(), dialled(node="a"), dialled()
    reflected = a_itself.respond(a.challenge)
    with pytest.raises(NotProven, match="the node at this address is a, not b"):
        a.prove(reflected)
    response = msgspec.msgpack.decode(b.respond(a.challenge))
    with pytest.raises(NotProven):  # the proof of the dialled node as that of the dialler
        b.verify(msgspec.msgpack.encode({"type": "proof", "process": "", "proof": response["proof"]}))


def test_proof_without_a_challenge_is_refused() -> None:
    a, b = dialling(), dialled()
    proof = a.prove(b.respond(a.challenge))
    with pytest.raises(NotProven):
        dialled().verify(proof)


@pytest.mark.parametrize(
    "data", [b"", b"\xc1", b"\xff" * 100, msgspec.msgpack.encode({"type": "proof"}), msgspec.msgpack.encode([1, 2])]
)
def test_malformed_message_is_refused(data: bytes) -> None:
    for take in (dialling().prove, dialled().respond, dialled().verify):
        with pytest.raises(NotProven, match="malformed"):
            take(data)


@pytest.mark.parametrize("size", [0, NONCE_BYTES - 1, NONCE_BYTES + 1])
def test_nonce_of_another_size_is_refused(size: int) -> None:
    a = dialling()
    challenge, response = (msgspec.msgpack.decode(each) for each in (a.challenge, dialled().respond(a.challenge)))
    with pytest.raises(NotProven, match="nonce"):
        dialled().respond(msgspec.msgpack.encode({**challenge, "nonce": bytes(size)}))
    with pytest.raises(NotProven, match="nonce"):
        a.prove(msgspec.msgpack.encode({**response, "nonce": bytes(size)}))


def test_empty_key_proves_nothing() -> None:
    a = dialling("")
    with pytest.raises(ValueError, match="needs a key"):
        dialled("").respond(a.challenge)
