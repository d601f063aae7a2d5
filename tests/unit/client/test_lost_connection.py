"""What is logged of connections that are lost or cannot be made."""

import logging

import pytest

from ropewalk.client.errors import CertificateUntrusted, TlsFailed, Unreachable
from ropewalk.client.lost_connection import MOST_REASONS, LostConnection

UNTRUSTED = CertificateUntrusted("https://a", ValueError("self-signed"))


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "ropewalk.client")
    return caplog


@pytest.mark.parametrize("error", [UNTRUSTED, TlsFailed("no TLS is spoken there")], ids=lambda error: type(error).__name__)
def test_what_only_people_can_mend_is_a_warning_with_the_reason_in_its_text(
    error: Unreachable, log: pytest.LogCaptureFixture
) -> None:
    LostConnection().log(error)
    [record] = log.records
    assert (record.levelname, record.getMessage()) == ("WARNING", f"not connected, and trying again: {error}")


def test_anything_else_is_no_warning(log: pytest.LogCaptureFixture) -> None:
    LostConnection().log(Unreachable("nobody listens"))
    assert [(record.levelname, record.getMessage()) for record in log.records] == [("INFO", "connection lost")]


def test_who_is_told_the_reason_gets_no_warning_besides(log: pytest.LogCaptureFixture) -> None:
    LostConnection(told=True).log(UNTRUSTED)
    assert [record.levelname for record in log.records] == ["INFO"]


def test_each_reason_is_logged_once_until_a_server_welcomes_again(log: pytest.LogCaptureFixture) -> None:
    lost = LostConnection()
    for error in (UNTRUSTED, Unreachable("nobody listens"), UNTRUSTED, Unreachable("nobody listens")):
        lost.log(error)
    assert len(log.records) == 2
    lost.welcomed()
    lost.log(UNTRUSTED)
    assert len(log.records) == 3


def test_reasons_without_end_are_not_remembered_without_end(log: pytest.LogCaptureFixture) -> None:
    lost = LostConnection()
    for number in range(MOST_REASONS + 1):
        lost.log(Unreachable(str(number)))
    lost.log(Unreachable("0"))
    assert len(log.records) == MOST_REASONS + 2
