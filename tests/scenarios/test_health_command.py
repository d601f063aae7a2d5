"""The command `ropewalk health` against servers that are ready, not ready, and not there."""

from tests.certificates import CERTIFICATE
from tests.scenarios.command_line import run_ropewalk
from tests.scenarios.shared_servers import ServerWith
from tests.server import RunningServer, running_server
from tests.services import free_port


def test_ready_server_is_ok(server: RunningServer, server_with: ServerWith) -> None:
    for path, running in (("/health", server), ("/healthz/", server_with("--public", "--health_path", "/healthz/"))):
        for flags in ((), ("--live",)):
            ended = run_ropewalk("health", "--url", running.url, *flags, ROPEWALK_HEALTH_PATH=path)
            assert (ended.stdout, ended.stderr, ended.returncode) == ("ok\n", "", 0), (path, flags)


def test_server_without_its_store_is_live_and_down_with_a_reason() -> None:
    with running_server("--public", "--broker", "redis", "--redis_url", f"redis://127.0.0.1:{free_port()}") as server:
        ready = run_ropewalk("health", "--url", server.url)
        assert ready.returncode == 1
        status, *reasons = ready.stdout.splitlines()
        assert status == "down"
        assert any("Redis" in reason for reason in reasons), reasons
        live = run_ropewalk("health", "--url", server.url, "--live")
        assert (live.stdout, live.returncode) == ("ok\n", 0)


def test_missing_server_and_other_page_have_different_errors(server: RunningServer) -> None:
    missing = run_ropewalk("health", "--url", f"http://127.0.0.1:{free_port()}")
    assert missing.returncode == 1
    assert "does not respond" in missing.stderr
    other = run_ropewalk("health", "--url", f"{server.url}/elsewhere")
    assert other.returncode == 1
    assert "is not the health page of a server" in other.stderr
    assert "Traceback" not in missing.stderr + other.stderr


def test_certificate_is_verified(tls_server: RunningServer) -> None:
    url = f"https://localhost:{tls_server.port}"
    untrusted = run_ropewalk("health", "--url", url)
    assert untrusted.returncode == 2
    assert "--ca_file" in untrusted.stderr
    assert run_ropewalk("health", "--url", url, "--ca_file", CERTIFICATE).stdout == "ok\n"


def test_tcp_address_is_a_usage_error() -> None:
    ended = run_ropewalk("health", "--url", "tls://127.0.0.1:8080")
    assert (ended.returncode, "http:// or https:// in the place of tls://" in ended.stderr) == (2, True), ended.stderr
