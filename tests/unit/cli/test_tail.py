"""What `ropewalk tail` says of a gap, of an address for which it has no word, and of a refused subscription."""

import pytest

from ropewalk.cli import tail
from ropewalk.cli.tail import Page
from ropewalk.client import Gap, Position, SubscriptionRejected
from ropewalk.model.errors import UserMistake


@pytest.mark.parametrize(
    ("gap", "told"),
    [
        (
            Gap("a", "trimmed", Position("e", 3), "e", 9, 12),
            "gap in a: 5 messages lost (trimmed); it goes on at epoch=e offset=9",
        ),
        (
            Gap("a", "epoch_changed", Position("e", 3), None, 1),
            "gap in a: messages lost (epoch_changed); it goes on at offset=1",
        ),
        (Gap("a", "disconnected", None), "gap in a: messages may be missing (disconnected)"),
        (Gap("a", ""), "gap in a: messages may be missing (no reason given)"),
    ],
    ids=["trimmed", "without an epoch yet", "without a place", "without a reason"],
)
def test_a_gap_is_told_with_what_is_known_of_it(gap: Gap, told: str, capsys: pytest.CaptureFixture[str]) -> None:
    Page(as_json=False, count=None).warn(gap)
    assert capsys.readouterr().err == f"{told}\n"


@pytest.mark.parametrize(
    ("url", "scheme"), [("http://a:1", "tcp://"), ("ws://a:1", "tcp://"), ("https://a:1", "tls://"), ("wss://a:1", "tls://")]
)
def test_beginnings_of_names_want_an_address_of_tcp_and_of_tls_where_it_is_one_of_tls(url: str, scheme: str) -> None:
    with pytest.raises(UserMistake, match=scheme):
        tail.run(["a/", "--prefix", "--url", url])


@pytest.mark.parametrize(
    ("words", "reason", "hint"),
    [
        ((), "", ": public streams need `--public` or `--public_streams` at the server, others --signed"),
        ((), "this key may not be subscribed to", ": public streams need `--public` or `--public_streams`"),
        (("--signed",), "", ": is the name signed with the secret of this server"),
        (
            ("--prefix",),
            "subscriptions by prefix are for servers whose streams are public",
            ": `--public` or `--public_streams` at the server makes its streams public",
        ),
    ],
)
def test_a_refused_subscription_is_told_with_what_would_allow_it(
    words: tuple[str, ...], reason: str, hint: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert hint in said_of_refusal(words, reason, monkeypatch)


def test_nobody_is_told_to_sign_the_beginning_of_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "--signed" not in said_of_refusal(("--prefix",), "", monkeypatch)


@pytest.mark.parametrize("words", [(), ("--prefix",), ("--signed",)])
def test_what_the_server_gives_as_the_reason_is_not_contradicted(
    words: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    reason = "with this broker there are no subscriptions by prefix: subscribe to each key"
    assert said_of_refusal(words, reason, monkeypatch).endswith(f"({reason})")


def said_of_refusal(words: tuple[str, ...], reason: str, monkeypatch: pytest.MonkeyPatch) -> str:
    async def refused(*_: object) -> None:
        raise SubscriptionRejected("a", reason)

    monkeypatch.setattr(tail, "_tail", refused)
    with pytest.raises(UserMistake) as raised:
        tail.run(["a", "--url", "tcp://127.0.0.1:1", *words])
    return str(raised.value)
