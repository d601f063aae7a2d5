"""Clients of a server with a private certificate: trusted if its file is named, and otherwise an error without retries."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path

import pytest

from ropewalk.client import Backoff, CertificateUntrusted, Message, Position, Publisher, PublishError, Unreachable, connect
from ropewalk.client.direct import Direct
from ropewalk.client.publish_request import Draft
from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.journal_client import JournalClient
from ropewalk.pipeline.options import Address
from tests.certificates import CERTIFICATE, KEY, RENEWED_CERTIFICATE, RENEWED_KEY, TLS_FLAGS
from tests.scenarios.command_line import run_ropewalk, running_program
from tests.scenarios.python_clients import PATIENT
from tests.server import RunningServer, running_server
from tests.services import free_port

NEVER = Backoff(first=1e6, cap=1e6)  # a retry would outlast the test


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningServer]:
    with running_server("--public", "--data_dir", str(tmp_path_factory.mktemp("data")), *TLS_FLAGS) as server:
        yield server


COMMANDS = [
    ("publish", "tls/cli", "1"),
    ("tail", "tls/cli", "--from", "1", "--count", "1"),
    ("bench", "--subscribers", "2", "--messages", "3"),
]


def test_command_trusts_the_certificates_of_its_file(server: RunningServer) -> None:
    for words in COMMANDS:
        result = run_ropewalk(*words, "--url", server.url, "--ca_file", CERTIFICATE)
        assert (result.returncode, result.stderr) == (0, ""), words


def test_command_that_does_not_trust_the_certificate_names_the_flag(server: RunningServer) -> None:
    for words in COMMANDS:
        result = run_ropewalk(*words, "--url", server.url)
        assert result.returncode == 2, words
        assert "certificate that is not trusted here" in result.stderr, words
        assert "--ca_file" in result.stderr, words
        assert "is the server running there?" not in result.stderr, words


def test_file_without_certificates_is_an_error(server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for words in COMMANDS:
        for path in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
            result = run_ropewalk(*words, "--url", server.url, "--ca_file", str(path))
            assert (result.returncode, result.stdout) == (2, ""), words
            assert result.stderr.startswith("ropewalk: ca_file must be a file of certificates"), words


def test_commands_take_the_address_from_the_settings_of_the_server(server: RunningServer, tmp_path: Path) -> None:
    settings = tmp_path / "ropewalk.toml"
    settings.write_text(f'[server]\nport = {server.port}\nssl_cert = "{CERTIFICATE}"\nssl_key = "{KEY}"\n')
    for words in COMMANDS:
        result = run_ropewalk(*words, "--ca_file", CERTIFICATE, ROPEWALK_CONFIG_PATH=str(settings))
        assert result.returncode == 0, result.stderr


async def test_client_and_publisher_trust_the_file(server: RunningServer) -> None:
    async with connect(server.url, ca_file=CERTIFICATE, **PATIENT) as client:
        receipt = await client.publish("tls/client", "hi")
        stream = await client.subscribe("tls/client", position=Position("", 0))
        event = await anext(aiter(stream))
        assert isinstance(event, Message)
        assert (event.offset, event.data) == (receipt.offset, "hi")
    async with Publisher(server.url, ca_file=CERTIFICATE) as publisher:
        assert (await publisher.publish("tls/client", "ho")).offset == receipt.offset + 1


async def test_untrusted_certificate_is_an_error_without_retries(server: RunningServer) -> None:
    with pytest.raises(CertificateUntrusted, match="certificate verify failed"):
        async with connect(server.url):
            pass
    async with Publisher(server.url, backoff=NEVER) as publisher:
        with pytest.raises(CertificateUntrusted, match="certificate verify failed"):
            await publisher.publish("tls/wary", 1)
    assert issubclass(CertificateUntrusted, Unreachable)
    assert issubclass(CertificateUntrusted, PublishError)


@pytest.mark.tier("all")
@pytest.mark.parametrize("scheme", ["https", "tls"])
async def test_client_retries_when_the_certificate_is_untrusted_later(scheme: str) -> None:
    port = free_port()
    url, trusting = f"{scheme}://127.0.0.1:{port}", ("--ca_file", CERTIFICATE)
    words = ("-m", "ropewalk", "tail", "tls/later", "--from", "1", "--url", url, *trusting)

    def server(certificate: str, key: str) -> AbstractContextManager[RunningServer]:
        return running_server("--public", "--port", str(port), "--ssl_cert", certificate, "--ssl_key", key)

    async with AsyncExitStack() as programs:
        with server(CERTIFICATE, KEY):
            tail = await programs.enter_async_context(running_program(*words))
            assert run_ropewalk("push", "tls/later", "1", "--url", url, *trusting).returncode == 0
            await tail.line()
        with server(RENEWED_CERTIFICATE, RENEWED_KEY):
            complaint = await tail.complaint()
            assert complaint.startswith("not connected, retrying: "), complaint
            assert "certificate that is not trusted here" in complaint
        with server(CERTIFICATE, KEY):
            assert run_ropewalk("push", "tls/later", "2", "--url", url, *trusting).returncode == 0
            await tail.line()


def test_blocking_publish_call_verifies_the_certificate(server: RunningServer) -> None:
    trusting = Direct(server.url, "", 10.0, CERTIFICATE)
    assert [trusting.publish_batch([Draft("tls/blocking", 1)])[0].offset for _ in range(2)] == [1, 2]
    with pytest.raises(CertificateUntrusted):
        Direct(server.url, "", 1e6, "").publish_batch([Draft("tls/blocking", 1)])
    with pytest.raises(UserMistake, match="cannot be read"):
        Direct(server.url, "", 10.0, "/nowhere/ca.pem")


async def test_asynchronous_publish_call_verifies_the_certificate(server: RunningServer) -> None:
    trusting = Direct(server.url, "", 10.0, CERTIFICATE)
    assert [(await trusting.apublish_batch([Draft("tls/async", 1)]))[0].offset for _ in range(2)] == [1, 2]
    await trusting.aclose()
    wary = Direct(server.url, "", 10.0, "")
    with pytest.raises(CertificateUntrusted):
        await wary.apublish_batch([Draft("tls/async", 1)])
    await wary.aclose()


def test_pipeline_verifies_the_certificate_without_retries(server: RunningServer, tmp_path: Path) -> None:
    assert len(JournalClient(Address(server.url, ca=CERTIFICATE)).spans()) == 16
    with pytest.raises(UserMistake, match="caFile"):
        JournalClient(Address(server.url, retries=10_000)).spans()  # so many retries would outlast the test
    with pytest.raises(UserMistake, match="cannot be read"):
        JournalClient(Address(server.url, ca=str(tmp_path / "none"), retries=10_000)).spans()
