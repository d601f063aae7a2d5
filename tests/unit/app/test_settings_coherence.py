"""What a server must have before it opens its doors."""

import pytest

from ropewalk.app.settings import load, require_startable
from ropewalk.model.errors import UserMistake


@pytest.mark.parametrize(
    "argv",
    [
        ["--secret", "s"],
        ["--jwt_secret", "s"],
        ["--noauth"],
        ["--public"],
        ["--public", "--host", "0.0.0.0"],
        ["--demo"],
        ["--demo", "--host", "localhost"],
        ["--demo", "--host", "::1"],
        ["--noauth", "--ssl_cert", "a", "--ssl_key", "b"],
        ["--noauth", "--metrics_http="],
        ["--noauth", "--health_path", "/"],
        ["--noauth", "--takeover", "--data_dir", "d"],
        ["--noauth", "--proxy_protocol", "--trusted_proxies", "10.0.0.0/8,::1,unix"],
        ["--demo", "--host", "unix:/tmp/socket"],
        ["--noauth", "--sse_path", "/cable"],
    ],
)
def test_these_may_start(argv: list[str]) -> None:
    require_startable(load(argv, {}))


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "--secret SECRET"),
        (["--jwt_secret", "none", "--secret", "s"], "--noauth"),
        (["--noauth", "--enforce_jwt"], "--enforce_jwt needs a secret"),
        (["--noauth", "--ssl_cert", "a"], "--ssl_key is missing"),
        (["--noauth", "--ssl_key", "a"], "--ssl_cert is missing"),
        (["--demo", "--host", "0.0.0.0"], "loopback only"),
        (["--demo", "--host", "example.com"], "loopback only"),
        (["--noauth", "--path", "cable"], "begins with /"),
        (["--noauth", "--metrics_http", "/health/live"], "--health_path and --metrics_http are the same path"),
        (["--noauth", "--takeover"], "--takeover needs --data_dir"),
        (["--noauth", "--trusted_proxies", "proxy.example.com"], "--trusted_proxies wants addresses"),
        (["--noauth", "--proxy_protocol"], "--proxy_protocol needs --trusted_proxies"),
        (
            ["--noauth", "--proxy_protocol", "--trusted_proxies", "::1", "--ssl_cert", "a", "--ssl_key", "b"],
            "does not go with --ssl_cert",
        ),
        (["--noauth", "--path", "/health"], "--path and --health_path are the same path"),
        (["--noauth", "--sse", "--sse_path", "/cable"], "--path and --sse_path are the same path"),
    ],
)
def test_these_are_refused_and_told_what_to_set(argv: list[str], message: str) -> None:
    with pytest.raises(UserMistake, match=message):
        require_startable(load(argv, {}))
