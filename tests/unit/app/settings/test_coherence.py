"""Checks of the settings as a whole before a server starts."""

from pathlib import Path

import pytest

from ropewalk.app.composition import build, http_routes, shared_port_of
from ropewalk.app.settings import load, require_startable
from ropewalk.app.settings.coherence import chosen_paths, taken_roots
from ropewalk.model.errors import UserMistake

RING = ["--secret", "s", "--ring", "a=10.0.0.1:8080,b=10.0.0.2:8080"]
BAD_NODES = ("a", "a=h", "a=:1", "a=h:0", "a=h:70000", "a=h:x", "=h:1", "a b=h:1", "a=http://h:1")


def test_valid_settings_can_start(subtests: pytest.Subtests) -> None:
    cases: list[list[str]] = [
        ["--secret", "s"],
        ["--jwt_secret", "s"],
        ["--noauth"],
        ["--public"],
        ["--public", "--host", "0.0.0.0"],
        ["--demo"],
        ["--demo", "--host", "localhost"],
        ["--demo", "--host", "::1"],
        ["--noauth", "--ssl_cert", "a", "--ssl_key", "b"],
        *(["--noauth", "--broker", "nats", "--nats_replicas", good] for good in "135"),
        ["--noauth", "--metrics_http="],
        ["--noauth", "--health_path", "/"],
        ["--noauth", "--takeover", "--data_dir", "d"],
        ["--noauth", "--proxy_protocol", "--trusted_proxies", "10.0.0.0/8,::1,unix"],
        ["--demo", "--host", "unix:/tmp/socket"],
        ["--demo", "--workers", "auto"],
        ["--noauth", "--workers", "4", "--data_dir", "d", "--archive_dir", "a"],
        ["--noauth", "--workers", "1", "--broker", "redis", "--data_dir", "d", "--archive_dir", "a"],
        ["--noauth", "--sse_path", "/cable"],
        ["--noauth", "--path", "/cable,/ws", "--api_path", "/", "--http_broadcast_path", "/api/broadcast"],
        ["--noauth", "--allowed_origins", "www.example.com,*.example.com,localhost:3000,[::1]:80,10.0.0.1,*"],
        ["--noauth", "--jwt_param", "Token_1"],
        ["--noauth", "--health_path", "/demo"],
        ["--noauth", "--health_path", "/journal"],
        ["--secret", "s", "--turbo_streams"],
        ["--noauth", "--cable_ready", "--cable_ready_secret", "s"],
        ["--secret", "s", "--ring", "a=10.0.0.1:8080,b=[::1]:8080,c=node-c.local:1", "--ring_node", "b"],
        ["--secret", "s", "--ring", "a=h:1,b=h:2", "--node_id", "a", "--data_dir", "d"],
        ["--secret", "s", "--ring", "a=h:1,b=h:2", "--node_id", "a", "--ring_key", "k" * 16],
        ["--secret", "s", "--ring", "a=h:1,b=h:2", "--node_id", "a", "--workers", "4"],
    ]
    for argv in cases:
        with subtests.test(argv=argv):
            require_startable(load(argv, {}))


def test_invalid_settings_are_rejected_with_a_hint(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        ([], "ROPEWALK_SECRET=SECRET"),
        ([*RING, "--ring_node", "d"], "--ring_node is d, and --ring has no such node, only a, b"),
        ([*RING, "--node_id", "d"], "--node_id is d"),
        (RING, "Set --ring_node to one of: a, b"),
        ([*RING, "--ring_node", "a", "--broker", "redis"], "--broker=redis already keeps everything"),
        ([*RING, "--ring_node", "a", "--takeover", "--data_dir", "d"], "--takeover is for a server alone"),
        ([*RING, "--ring_node", "a", "--takeover", "--data_dir", "d", "--workers", "2"], "--takeover is for a server alone"),
        ([*RING, "--ring_node", "a", "--host", "unix:/s"], "over TCP"),
        ([*RING, "--ring_node", "a", "--host", "unix:/s", "--workers", "2"], "over TCP"),
        ([*RING, "--ring_node", "a", "--journal_shards", "1"], "needs as many shards"),
        ([*RING, "--ring_node", "a", "--data_dir", "d", "--archive_dir", "a"], "leave it away"),
        (["--noauth", "--ring", "a=h:1,b=h:2", "--ring_node", "a"], "--ring needs --secret"),
        (["--noauth", "--ring_node", "a"], "--ring is not"),
        (["--noauth", "--ring_key", "k" * 16], "--ring is not"),
        ([*RING, "--ring_node", "a", "--ring_key", "k" * 15], "at least 16 characters"),
        ([*RING, "--ring_node", "a", "--ring_key", "none"], "at least 16 characters"),
        (["--noauth", "--port", "9000", "--tcp_port", "9000"], "--tcp_port is a second port, and --port has the same"),
        (["--secret", "s", "--ring", "a=h:1,a=h:2", "--ring_node", "a"], "the same name, a"),
        (["--secret", "s", "--ring", "a=h:1,b=h:1", "--ring_node", "a"], "the same address, h:1"),
        (["--secret", "s", "--ring", "redis", "--ring_node", "a"], "to share state in redis, use --broker=redis"),
        *((["--secret", "s", "--ring", bad, "--ring_node", "a"], "name=host:port") for bad in BAD_NODES),
        (["--jwt_secret", "none", "--secret", "s"], "--noauth"),
        (["--noauth", "--enforce_jwt"], "--enforce_jwt needs a secret"),
        (["--noauth", "--ssl_cert", "a"], "--ssl_key is missing"),
        (["--noauth", "--workers", "2", "--broker", "redis", "--data_dir", "d", "--archive_dir", "a"], "leave --workers away"),
        (["--noauth", "--ssl_key", "a"], "--ssl_cert is missing"),
        (["--demo", "--host", "0.0.0.0"], "loopback only"),
        (["--demo", "--host", "example.com"], "loopback only"),
        (["--noauth", "--path", "cable"], "begins with /"),
        (["--noauth", "--metrics_http", "/health/live"], "--health_path and --metrics_http are the same path"),
        (["--noauth", "--takeover"], "--takeover needs --data_dir"),
        *((["--noauth", "--broker", "nats", "--nats_replicas", bad], "2 outlive none, and 4 no more than 3") for bad in "246"),
        (["--noauth", "--trusted_proxies", "proxy.example.com"], "--trusted_proxies wants addresses"),
        (["--noauth", "--proxy_protocol"], "--proxy_protocol needs --trusted_proxies"),
        (
            ["--noauth", "--proxy_protocol", "--trusted_proxies", "::1", "--ssl_cert", "a", "--ssl_key", "b"],
            "does not go with --ssl_cert",
        ),
        (["--noauth", "--path", "/health"], "--path and --health_path are the same path"),
        (["--noauth", "--sse", "--sse_path", "/cable"], "--path and --sse_path are the same path"),
        (["--noauth", "--path", "/a,/b,/a"], "--path and --path are the same path, /a"),
        (["--noauth", "--path="], "at least one path"),
        (["--noauth", "--path", "/a?b=c"], "nothing of a query"),
        (["--noauth", "--path", "/{name}"], "begins with /"),
        (["--noauth", "--path", "/käbel"], "begins with /"),
        (["--noauth", "--api_path="], "begins with /"),
        (["--noauth", "--http_broadcast_path", "/api/publish"], "where the REST API is already"),
        (["--noauth", "--path", "/api/streams/x"], "where the REST API is already"),
        (["--demo", "--health_path", "/demo"], "where the demo page is already"),
        (["--noauth", "--data_dir", "d", "--metrics_http", "/journal/0"], "where the journal is already"),
        (["--noauth", "--allowed_origins", "a.com,https://b.com"], "not 'https://b.com': leave the scheme away"),
        (["--noauth", "--allowed_origins", "a.com/chat"], "wants hosts"),
        (["--noauth", "--allowed_origins", "chat.*.com"], "wants hosts"),
        (["--noauth", "--allowed_origins", "*example.com"], "wants hosts"),
        (["--noauth", "--jwt_param="], "--jwt_param wants a name"),
        (["--noauth", "--jwt_param", "my token"], "--jwt_param wants a name"),
        (["--noauth", "--host="], "--host wants an address"),
        (["--noauth", "--turbo_streams"], "--turbo_streams needs the secret"),
        (["--secret", "s", "--cable_ready", "--streams_secret", "none"], "--cable_ready needs the secret"),
        (["--noauth", "--rpc_max_call_recv_size", "2GiB"], "--rpc_max_call_recv_size may be 2147483647 bytes"),
        (["--noauth", "--data_dir", "d", "--archive_dir", __file__], "--archive_dir wants a directory"),
        (["--noauth", "--data_dir", "d", "--archive_dir", "s3a://b/a"], "--archive_dir wants a directory of this machine"),
    ]
    for argv, message in cases:
        with subtests.test(argv=argv), pytest.raises(UserMistake, match=message):
            require_startable(load(argv, {}))


def test_path_conflict_check_covers_every_endpoint(tmp_path: Path) -> None:
    settings = load(["--demo", "--data_dir", str(tmp_path)], {})
    chosen = {path for _, path in chosen_paths(settings)}
    roots = tuple(root for _, root in taken_roots(settings))

    parts = build(settings)
    found = {route.path for route in http_routes(settings, parts, shared_port_of(settings, parts), parts.inspector)}

    # The demo's redirect from / yields to an endpoint configured at /.
    assert {path for path in found if not path.startswith(roots)} - {"/"} <= chosen
    assert {root for root in roots if not any(path.startswith(root) for path in found)} == set()
