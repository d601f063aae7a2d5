"""`ropewalk health` against servers that are well, that lack something, and that are not there."""

from pathlib import Path

import pytest

from tests.scenarios.command_line import run_ropewalk
from tests.server import running_server
from tests.services import free_port

FIXTURES = Path(__file__).parents[1] / "fixtures"


@pytest.mark.parametrize("path", ["/health", "/healthz/"])
def test_a_server_that_is_well_is_ok(path: str) -> None:
    with running_server("--public", "--health_path", path) as server:
        for flags in ((), ("--live",)):
            ended = run_ropewalk("health", "--url", server.url, *flags, ROPEWALK_HEALTH_PATH=path)
            assert (ended.stdout, ended.stderr, ended.returncode) == ("ok\n", "", 0)


def test_one_that_lacks_something_lives_and_is_down_for_a_reason() -> None:
    with running_server("--public", "--broker", "redis", "--redis_url", f"redis://127.0.0.1:{free_port()}") as server:
        ready = run_ropewalk("health", "--url", server.url)
        assert ready.returncode == 1
        status, *reasons = ready.stdout.splitlines()
        assert status == "down"
        assert any("Redis" in reason for reason in reasons), reasons
        live = run_ropewalk("health", "--url", server.url, "--live")
        assert (live.stdout, live.returncode) == ("ok\n", 0)


def test_one_that_is_not_there_is_told_from_one_that_is_no_ropewalk() -> None:
    nobody = run_ropewalk("health", "--url", f"http://127.0.0.1:{free_port()}")
    assert nobody.returncode == 1
    assert "does not answer" in nobody.stderr
    with running_server("--public") as server:
        other = run_ropewalk("health", "--url", f"{server.url}/elsewhere")
    assert other.returncode == 1
    assert "is not the health page of a server" in other.stderr
    assert "Traceback" not in nobody.stderr + other.stderr


def test_a_certificate_is_checked() -> None:
    certificate = str(FIXTURES / "tls_cert.pem")
    with running_server("--public", "--ssl_cert", certificate, "--ssl_key", str(FIXTURES / "tls_key.pem")) as server:
        url = f"https://localhost:{server.port}"
        untrusted = run_ropewalk("health", "--url", url)
        assert untrusted.returncode == 2
        assert "--ca_file" in untrusted.stderr
        assert run_ropewalk("health", "--url", url, "--ca_file", certificate).stdout == "ok\n"


def test_an_address_over_tcp_is_a_mistake() -> None:
    ended = run_ropewalk("health", "--url", "tls://127.0.0.1:8080")
    assert (ended.returncode, "http:// or https:// in the place of tls://" in ended.stderr) == (2, True), ended.stderr
