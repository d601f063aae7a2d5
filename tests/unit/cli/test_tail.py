"""Messages of `ropewalk tail` about gaps, unsuitable addresses and rejected subscriptions."""

import pytest

from ropewalk.cli import tail
from ropewalk.cli.tail import Page
from ropewalk.client import Gap, Position, SubscriptionRejected
from ropewalk.model.errors import UserMistake


def test_gap_is_printed_with_its_known_details(capsys: pytest.CaptureFixture[str], subtests: pytest.Subtests) -> None:
    cases: list[tuple[Gap, str]] = [
        (
            Gap("a", "trimmed", Position("e", 3), "e", 9, 12),
            "gap in a: 5 messages lost (trimmed); continues at epoch=e offset=9",
        ),
        (
            Gap("a", "epoch_changed", Position("e", 3), None, 1),
            "gap in a: messages lost (epoch_changed); continues at offset=1",
        ),
        (Gap("a", "disconnected", None), "gap in a: messages may be missing (disconnected)"),
        (Gap("a", ""), "gap in a: messages may be missing (no reason given)"),
    ]
    for gap, text in cases:
        with subtests.test(gap=gap):
            Page(as_json=False, count=None).warn(gap)
            assert capsys.readouterr().err == f"{text}\n"


def test_prefix_needs_a_tcp_or_tls_address(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("http://a:1", "tcp://"),
        ("ws://a:1", "tcp://"),
        ("https://a:1", "tls://"),
        ("wss://a:1", "tls://"),
    ]
    for url, scheme in cases:
        with subtests.test(url=url), pytest.raises(UserMistake, match=scheme):
            tail.run(["a/", "--prefix", "--url", url])


def test_rejected_subscription_is_reported_with_a_hint(monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], str, str]] = [
        ((), "", ": public streams need `--public` or `--public_streams` at the server, others --signed"),
        ((), "this key may not be subscribed to", ": public streams need `--public` or `--public_streams`"),
        (("--signed",), "", ": is the name signed with the secret of this server"),
        (
            ("--prefix",),
            "subscriptions by prefix are for servers whose streams are public",
            ": start the server with `--public` or `--public_streams` to make its streams public",
        ),
    ]
    for words, reason, hint in cases:
        with subtests.test(words=words, reason=reason):
            assert hint in rejection_message(words, reason, monkeypatch)


def test_rejected_prefix_has_no_hint_to_sign_it(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--signed" not in rejection_message(("--prefix",), "", monkeypatch)


def test_unknown_reason_of_the_server_is_shown_without_a_hint(
    monkeypatch: pytest.MonkeyPatch, subtests: pytest.Subtests
) -> None:
    cases: list[tuple[str, ...]] = [(), ("--prefix",), ("--signed",)]
    for words in cases:
        with subtests.test(words=words):
            reason = "with this broker there are no subscriptions by prefix: subscribe to each key"
            assert rejection_message(words, reason, monkeypatch).endswith(f"({reason})")


def rejection_message(words: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch) -> str:
    async def reject(*_: object) -> None:
        raise SubscriptionRejected("a", reason)

    monkeypatch.setattr(tail, "_tail", reject)
    with pytest.raises(UserMistake) as raised:
        tail.run(["a", "--url", "tcp://127.0.0.1:1", *words])
    return str(raised.value)
