"""Log records about lost and failed connections."""

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
def test_tls_errors_are_logged_as_warnings_with_the_reason(error: Unreachable, log: pytest.LogCaptureFixture) -> None:
    LostConnection().log(error)
    [record] = log.records
    assert (record.levelname, record.getMessage()) == ("WARNING", f"not connected, and trying again: {error}")


def test_other_errors_are_logged_as_info(log: pytest.LogCaptureFixture) -> None:
    LostConnection().log(Unreachable("connection refused"))
    assert [(record.levelname, record.getMessage()) for record in log.records] == [("INFO", "connection lost")]


def test_error_that_is_also_raised_is_logged_as_info(log: pytest.LogCaptureFixture) -> None:
    LostConnection(told=True).log(UNTRUSTED)
    assert [record.levelname for record in log.records] == ["INFO"]


def test_each_reason_is_logged_once_per_connection(log: pytest.LogCaptureFixture) -> None:
    lost = LostConnection()
    for error in (UNTRUSTED, Unreachable("connection refused"), UNTRUSTED, Unreachable("connection refused")):
        lost.log(error)
    assert len(log.records) == 2
    lost.welcomed()
    lost.log(UNTRUSTED)
    assert len(log.records) == 3


def test_number_of_remembered_reasons_is_limited(log: pytest.LogCaptureFixture) -> None:
    lost = LostConnection()
    for number in range(MOST_REASONS + 1):
        lost.log(Unreachable(str(number)))
    lost.log(Unreachable("0"))
    assert len(log.records) == MOST_REASONS + 2
