"""Signing: the test vectors of other servers and SDKs, and forgeries."""

import base64
import hashlib
import hmac
import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ropewalk.core.signatures import (
    API_PHRASE,
    BROADCAST_PHRASE,
    RPC_PHRASE,
    derive,
    matches,
    sign_stream,
    unverified_name,
    verify_stream,
)

SECRET = "s3Krit"
SIGNED = {
    "chat:2021": "ImNoYXQ6MjAyMSI=--f9ee45dbccb1da04d8ceb99cc820207804370ba0d06b46fc3b8b373af1315628",
    "chat/2023": "ImNoYXQvMjAyMyI=--2b2e054b6413bf3bc7e8bbad2f68962aa2ba19821800ccbd8de6fd7314e8320c",
}
secrets = st.text(min_size=1)


def sign_json(content: str, secret: str, url_safe: bool, padded: bool) -> str:
    """Sign this JSON text as another implementation would."""
    encode = base64.urlsafe_b64encode if url_safe else base64.b64encode
    text = encode(content.encode()).decode()
    return sign_text(text if padded else text.rstrip("="), secret)


def sign_text(text: str, secret: str) -> str:
    return f"{text}--{hmac.new(secret.encode(), text.encode(), hashlib.sha256).hexdigest()}"


def test_names_are_signed_and_verified_like_the_known_vectors(subtests: pytest.Subtests) -> None:
    for name, signed in SIGNED.items():
        with subtests.test(name=name, signed=signed):
            assert sign_stream(name, SECRET) == signed
            assert verify_stream(signed, SECRET) == name


def test_keys_are_derived_like_the_known_vectors(subtests: pytest.Subtests) -> None:
    rows: list[tuple[str, str]] = [
        (BROADCAST_PHRASE, "42923a28b760e667fc92f7c6123bb07a282822b329dd2ef48e7aee7830d98485"),
        (RPC_PHRASE, "57c40610d142fe7d7999be4e23dfba4f42c3c542e1f278063e8e3b6a30b0c2bd"),
        (API_PHRASE, "bdd0244b3664404d03b7d0c2f1b946dc4fc6c13fdcbfa2be62a4a28deb04d096"),
    ]
    for phrase, key in rows:
        with subtests.test(phrase=phrase, key=key):
            assert derive("qwerty", phrase) == key


@given(st.text(), secrets)
def test_signed_name_verifies_with_the_same_secret(name: str, secret: str) -> None:
    assert verify_stream(sign_stream(name, secret), secret) == name


@given(st.text(), secrets, st.booleans(), st.booleans(), st.booleans())
def test_both_base64_alphabets_verify_with_and_without_padding(
    name: str, secret: str, url_safe: bool, padded: bool, ascii_only: bool
) -> None:
    content = json.dumps(name, ensure_ascii=ascii_only)
    assert verify_stream(sign_json(content, secret, url_safe, padded), secret) == name


def test_last_separator_splits_the_signature() -> None:
    name = "\ufeef\ufeef"
    signed = sign_json(json.dumps(name, ensure_ascii=False), SECRET, url_safe=True, padded=True)
    assert signed.startswith("Iu-7r--7ryI=--")
    assert verify_stream(signed, SECRET) == name


@given(st.text(), secrets, secrets)
def test_another_secret_does_not_verify(name: str, secret: str, other: str) -> None:
    # HMAC pads short keys with NUL bytes, so such keys are one and the same.
    assume(secret.rstrip("\0") != other.rstrip("\0"))
    assert verify_stream(sign_stream(name, secret), other) is None


@given(st.text(), secrets, st.data())
def test_changed_character_does_not_verify(name: str, secret: str, data: st.DataObject) -> None:
    signed = sign_stream(name, secret)
    place = data.draw(st.integers(0, len(signed) - 1))
    character = data.draw(st.characters(exclude_characters=signed[place]))
    assert verify_stream(signed[:place] + character + signed[place + 1 :], secret) is None


@given(st.text(), secrets, st.data())
def test_lost_or_added_character_does_not_verify(name: str, secret: str, data: st.DataObject) -> None:
    signed = sign_stream(name, secret)
    place = data.draw(st.integers(0, len(signed) - 1))
    added = data.draw(st.characters())
    assert verify_stream(signed[:place] + signed[place + 1 :], secret) is None
    assert verify_stream(signed[:place] + added + signed[place:], secret) is None


@given(st.text(alphabet=st.characters(exclude_categories=())))
def test_arbitrary_text_does_not_verify(signed: str) -> None:
    assert verify_stream(signed, SECRET) is None


def test_signed_content_must_be_a_json_string(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["1", "null", '["chat"]', '{"a":1}', "NaN", '"cut', "", '"\\ud800"', "[" * 100_000]
    for content in rows:
        with subtests.test(content=content):
            assert verify_stream(sign_json(content, SECRET, url_safe=False, padded=True), SECRET) is None


def test_signed_text_must_be_base64_of_utf8(subtests: pytest.Subtests) -> None:
    rows: list[str] = ["a", "abcde", "ab cd", "IngiCg==IngiCg==", "жжжж", "/////w=="]
    for text in rows:
        with subtests.test(text=text):
            assert verify_stream(sign_text(text, SECRET), SECRET) is None


def test_name_can_be_read_without_the_secret() -> None:
    assert unverified_name("ImNoYXQ6MjAyMSI=--forged") == "chat:2021"
    assert unverified_name("ImNoYXQ6MjAyMSI--") == "chat:2021"
    assert unverified_name("ImNoYXQ6MjAyMSI=") is None


def test_empty_secret_signs_and_verifies_nothing() -> None:
    forged = sign_text("ImNoYXQi", "")
    assert verify_stream(forged, "") is None
    with pytest.raises(ValueError, match="empty secret"):
        sign_stream("chat", "")
    with pytest.raises(ValueError, match="empty secret"):
        derive("", BROADCAST_PHRASE)


def test_secret_that_is_not_utf8_signs_with_its_raw_bytes() -> None:
    expected = hmac.new(b"\xff\xfe", b"api-cable", hashlib.sha256).hexdigest()
    assert derive(b"\xff\xfe".decode("utf-8", "surrogateescape"), API_PHRASE) == expected


@given(st.text(alphabet=st.characters(exclude_categories=())), st.text(alphabet=st.characters(exclude_categories=())))
def test_key_matches_only_itself(given_key: str, expected: str) -> None:
    assert matches(given_key, expected) == (given_key == expected and expected != "")
    assert matches(expected, expected) == (expected != "")


def test_empty_expected_key_matches_nothing() -> None:
    assert not matches("", "")
    assert not matches("key", "")
