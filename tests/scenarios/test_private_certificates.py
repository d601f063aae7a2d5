"""Clients of a server with a private certificate: trusted when told so, and said in words, at once, when not."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, AsyncExitStack
from pathlib import Path

import pytest

from ropewalk.client import Backoff, CertificateUntrusted, Message, Position, Publisher, PublishError, Unreachable, connect
from ropewalk.client.direct import Direct
from ropewalk.client.publish_request import Draft
from ropewalk.model.errors import UserMistake
from tests.scenarios.command_line import run_ropewalk, running_program
from tests.server import RunningServer, running_server
from tests.services import free_port

FIXTURES = Path(__file__).parents[1] / "fixtures"
CERTIFICATE, KEY = str(FIXTURES / "tls_cert.pem"), str(FIXTURES / "tls_key.pem")
ANOTHER, ITS_KEY = str(FIXTURES / "tls_renewed_cert.pem"), str(FIXTURES / "tls_renewed_key.pem")
NEVER = Backoff(first=1e6, cap=1e6)  # whoever tries again does not come back within the time of a test


@pytest.fixture(scope="module")
def server() -> Iterator[RunningServer]:
    with running_server("--public", "--ssl_cert", CERTIFICATE, "--ssl_key", KEY) as server:
        yield server


COMMANDS = [
    ("publish", "tls/cli", "1"),
    ("tail", "tls/cli", "--from", "1", "--count", "1"),
    ("bench", "--subscribers", "2", "--messages", "3"),
]


def test_commands_trust_the_certificates_of_the_file_they_are_given(server: RunningServer) -> None:
    for words in COMMANDS:
        result = run_ropewalk(*words, "--url", server.url, "--ca_file", CERTIFICATE)
        assert (result.returncode, result.stderr) == (0, ""), words


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_command_that_does_not_trust_the_certificate_names_the_flag_for_it(
    words: tuple[str, ...], server: RunningServer
) -> None:
    result = run_ropewalk(*words, "--url", server.url)
    assert result.returncode == 2
    assert "certificate that is not trusted here" in result.stderr
    assert "--ca_file" in result.stderr
    assert "is the server running there?" not in result.stderr


@pytest.mark.parametrize("words", COMMANDS, ids=lambda words: words[0])
def test_a_file_without_certificates_is_said_in_words(words: tuple[str, ...], server: RunningServer, tmp_path: Path) -> None:
    (tmp_path / "empty.pem").touch()
    for path in (tmp_path / "empty.pem", tmp_path / "missing.pem"):
        result = run_ropewalk(*words, "--url", server.url, "--ca_file", str(path))
        assert (result.returncode, result.stdout) == (2, "")
        assert result.stderr.startswith("ropewalk: ca_file wants a file with certificates")


def test_commands_find_the_server_where_its_settings_say(server: RunningServer, tmp_path: Path) -> None:
    settings = tmp_path / "ropewalk.toml"
    settings.write_text(f'[server]\nport = {server.port}\nssl_cert = "{CERTIFICATE}"\nssl_key = "{KEY}"\n')
    for words in COMMANDS:
        by_file = run_ropewalk(*words, "--ca_file", CERTIFICATE, ROPEWALK_CONFIG_PATH=str(settings))
        assert by_file.returncode == 0, by_file.stderr


async def test_the_client_and_its_publisher_trust_the_file(server: RunningServer) -> None:
    async with connect(server.url, ca_file=CERTIFICATE) as client:
        receipt = await client.publish("tls/client", "hi")
        stream = await client.subscribe("tls/client", position=Position("", 0))
        event = await anext(aiter(stream))
        assert isinstance(event, Message)
        assert (event.offset, event.data) == (receipt.offset, "hi")
    async with Publisher(server.url, ca_file=CERTIFICATE) as publisher:
        assert (await publisher.publish("tls/client", "ho")).offset == receipt.offset + 1


async def test_without_it_both_say_that_the_certificate_is_not_trusted_and_nothing_is_tried_again(
    server: RunningServer,
) -> None:
    with pytest.raises(CertificateUntrusted, match="certificate verify failed"):
        async with connect(server.url):
            pass
    async with Publisher(server.url, backoff=NEVER) as publisher:
        with pytest.raises(CertificateUntrusted, match="certificate verify failed"):
            await publisher.publish("tls/wary", 1)
    assert issubclass(CertificateUntrusted, Unreachable)
    assert issubclass(CertificateUntrusted, PublishError)


@pytest.mark.parametrize("scheme", ["https", "tls"])
async def test_who_comes_back_to_a_certificate_that_is_not_trusted_says_so_and_tries_again(scheme: str) -> None:
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
        with server(ANOTHER, ITS_KEY):
            complaint = await tail.complaint()
            assert complaint.startswith("not connected, and trying again: "), complaint
            assert "certificate that is not trusted here" in complaint
        with server(CERTIFICATE, KEY):
            assert run_ropewalk("push", "tls/later", "2", "--url", url, *trusting).returncode == 0
            await tail.line()


def test_publishing_in_one_call_from_blocking_code(server: RunningServer) -> None:
    trusting = Direct(server.url, "", 10.0, CERTIFICATE)
    assert [trusting.publish_batch([Draft("tls/blocking", 1)])[0].offset for _ in range(2)] == [1, 2]
    with pytest.raises(CertificateUntrusted):
        Direct(server.url, "", 1e6, "").publish_batch([Draft("tls/blocking", 1)])
    with pytest.raises(UserMistake, match="cannot be read"):
        Direct(server.url, "", 10.0, "/nowhere/ca.pem")


async def test_publishing_in_one_call_from_asynchronous_code(server: RunningServer) -> None:
    trusting = Direct(server.url, "", 10.0, CERTIFICATE)
    assert [(await trusting.apublish_batch([Draft("tls/async", 1)]))[0].offset for _ in range(2)] == [1, 2]
    await trusting.aclose()
    wary = Direct(server.url, "", 10.0, "")
    with pytest.raises(CertificateUntrusted):
        await wary.apublish_batch([Draft("tls/async", 1)])
    await wary.aclose()
