"""Checks of the settings as a whole before a server starts."""

import re
from pathlib import Path

import pytest

from ropewalk.app.composition import build, build_shared_port, http_routes
from ropewalk.app.settings import load, require_startable, startup_warnings
from ropewalk.app.settings.check import endpoint_paths, reserved_roots
from ropewalk.model.errors import UserMistake

RING = ["--secret", "s", "--ring", "a=10.0.0.1:9080,b=10.0.0.2:9080"]
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
        ["--secret", "s", "--ring", "a=10.0.0.1:8080,b=[::1]:9080,c=node-c.local:1", "--ring_node", "b"],
        ["--secret", "s", "--ring", "a=10.0.0.1:8080,b=10.0.0.2:8080", "--ring_node", "a", "--ring_port", "9080"],
        ["--secret", "s", "--ring", "a=10.0.0.1:8080,b=10.0.0.2:8080", "--ring_node", "a", "--port", "0"],
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
        ([*RING, "--ring_node", "d"], "--ring_node is d, which --ring does not list: set it to one of a, b"),
        ([*RING, "--node_id", "d"], "--node_id is d"),
        (RING, "set --ring_node to one of a, b"),
        ([*RING, "--ring_node", "a", "--broker", "redis"], "--ring cannot be combined with --broker=redis"),
        ([*RING, "--ring_node", "a", "--takeover", "--data_dir", "d"], "--takeover cannot be combined with --ring"),
        (
            [*RING, "--ring_node", "a", "--takeover", "--data_dir", "d", "--workers", "2"],
            "--takeover cannot be combined with --ring",
        ),
        ([*RING, "--ring_node", "a", "--host", "unix:/s"], "--ring needs an IP address or host name as --host"),
        (
            [*RING, "--ring_node", "a", "--host", "unix:/s", "--workers", "2"],
            "--ring needs an IP address or host name as --host",
        ),
        ([*RING, "--ring_node", "a", "--journal_shards", "1"], "--journal_shards is 1, and a ring of 2 nodes needs at least 2"),
        ([*RING, "--ring_node", "a", "--data_dir", "d", "--archive_dir", "a"], "--archive_dir cannot be combined with --ring"),
        (["--noauth", "--ring", "a=h:1,b=h:2", "--ring_node", "a"], "--ring needs --secret"),
        (["--noauth", "--ring_node", "a"], "--ring_node needs --ring"),
        (["--noauth", "--ring_key", "k" * 16], "--ring_key needs --ring"),
        (["--noauth", "--ring_port", "9080"], "--ring_port needs --ring"),
        (
            [*RING, "--ring_node", "a", "--port", "9080"],
            "--port and the ring's port are both 9080, .* set another one in --ring at all nodes, such as 9081",
        ),
        (
            [*RING, "--ring_node", "a", "--ring_port", "8080"],
            "--port and the ring's port are both 8080, .* set another one in --ring_port, such as 9080",
        ),
        ([*RING, "--ring_node", "a", "--tcp_port", "9080"], "--tcp_port and the ring's port are both 9080"),
        ([*RING, "--ring_node", "a", "--ring_key", "k" * 15], "at least 16 characters"),
        ([*RING, "--ring_node", "a", "--ring_key", "none"], "at least 16 characters"),
        (["--noauth", "--port", "9000", "--tcp_port", "9000"], "--tcp_port must differ from --port"),
        (["--secret", "s", "--ring", "a=h:1,a=h:2", "--ring_node", "a"], "the same name, a"),
        (["--secret", "s", "--ring", "a=h:1,b=h:1", "--ring_node", "a"], "the same address, h:1"),
        (["--secret", "s", "--ring", "redis", "--ring_node", "a"], "to share state in redis, use --broker=redis"),
        *((["--secret", "s", "--ring", bad, "--ring_node", "a"], "name=host:port") for bad in BAD_NODES),
        (["--jwt_secret", "none", "--secret", "s"], "--noauth"),
        (["--noauth", "--enforce_jwt"], "--enforce_jwt needs a secret"),
        (["--noauth", "--ssl_cert", "a"], "TLS needs --ssl_cert and --ssl_key: set --ssl_key too"),
        (["--noauth", "--workers", "2", "--broker", "redis", "--data_dir", "d", "--archive_dir", "a"], "remove --workers"),
        (["--noauth", "--ssl_key", "a"], "TLS needs --ssl_cert and --ssl_key: set --ssl_cert too"),
        (["--demo", "--host", "0.0.0.0"], "loopback only"),
        (["--demo", "--host", "example.com"], "loopback only"),
        (["--noauth", "--path", "cable"], "starts with /"),
        (["--noauth", "--metrics_http", "/health/live"], "--health_path and --metrics_http must differ"),
        (["--noauth", "--takeover"], "--takeover needs --data_dir"),
        *(
            (["--noauth", "--broker", "nats", "--nats_replicas", bad], "while 2 tolerate none and 4 no more than 3")
            for bad in "246"
        ),
        (["--noauth", "--trusted_proxies", "proxy.example.com"], "--trusted_proxies wants addresses"),
        (["--noauth", "--proxy_protocol"], "--proxy_protocol needs --trusted_proxies"),
        (
            ["--noauth", "--proxy_protocol", "--trusted_proxies", "::1", "--ssl_cert", "a", "--ssl_key", "b"],
            "--proxy_protocol cannot be combined with --ssl_cert",
        ),
        (["--noauth", "--path", "/health"], "--path and --health_path must differ"),
        (["--noauth", "--sse", "--sse_path", "/cable"], "--path and --sse_path must differ"),
        (["--noauth", "--path", "/a,/b,/a"], "--path and --path must differ, both are /a"),
        (["--noauth", "--path="], "at least one path"),
        (["--noauth", "--path", "/a?b=c"], "has no query"),
        (["--noauth", "--path", "/{name}"], "starts with /"),
        (["--noauth", "--path", "/käbel"], "starts with /"),
        (["--noauth", "--api_path="], "starts with /"),
        (["--noauth", "--http_broadcast_path", "/api/publish"], "which the REST API uses"),
        (["--noauth", "--path", "/api/streams/x"], "which the REST API uses"),
        (["--demo", "--health_path", "/demo"], "which the demo page uses"),
        (["--noauth", "--path", "/ropewalk.js"], "which the JavaScript client uses"),
        (["--noauth", "--data_dir", "d", "--metrics_http", "/journal/0"], "which the journal uses"),
        (["--noauth", "--allowed_origins", "a.com,https://b.com"], "not 'https://b.com': remove the scheme"),
        (["--noauth", "--allowed_origins", "a.com/chat"], "--allowed_origins must list hosts"),
        (["--noauth", "--allowed_origins", "chat.*.com"], "--allowed_origins must list hosts"),
        (["--noauth", "--allowed_origins", "*example.com"], "--allowed_origins must list hosts"),
        (["--noauth", "--jwt_param="], "--jwt_param must consist of letters"),
        (["--noauth", "--jwt_param", "my token"], "--jwt_param must consist of letters"),
        (["--noauth", "--host="], "--host must be an address"),
        (["--noauth", "--turbo_streams"], "--turbo_streams needs the secret"),
        (["--secret", "s", "--cable_ready", "--streams_secret", "none"], "--cable_ready needs the secret"),
        (["--noauth", "--rpc_max_call_recv_size", "2GiB"], "--rpc_max_call_recv_size must be at most 2147483647 bytes"),
        (["--noauth", "--data_dir", "d", "--archive_dir", __file__], "--archive_dir must be a directory"),
        (["--noauth", "--data_dir", "d", "--archive_dir", "s3a://b/a"], "--archive_dir must be a directory of this machine"),
    ]
    for argv, message in cases:
        with subtests.test(argv=argv), pytest.raises(UserMistake, match=message):
            require_startable(load(argv, {}))


def test_path_conflict_check_covers_every_endpoint(tmp_path: Path) -> None:
    settings = load(["--demo", "--data_dir", str(tmp_path)], {})
    chosen = {path for _, path in endpoint_paths(settings)}
    roots = tuple(root for _, root in reserved_roots(settings))

    parts = build(settings)
    found = {route.path for route in http_routes(settings, parts, build_shared_port(settings, parts), parts.inspector)}

    # The demo's redirect from / yields to an endpoint configured at /.
    assert {path for path in found if not path.startswith(roots)} - {"/"} <= chosen
    assert {root for root in roots if not any(path.startswith(root) for path in found)} == set()


def test_valid_redis_and_nats_settings_can_start(subtests: pytest.Subtests) -> None:
    cases: list[list[str]] = [
        [],
        ["--broadcast_adapter=http,redisx,redis,nats"],
        ["--broadcast_adapter=redisx", "--redis_url=rediss://user:pass@example.com:6380/1"],
        ["--broadcast_adapter=redisx", "--redis_url=unix:///run/redis.sock"],
        ["--broker=redis", "--redis_url=redis://a:1/, redis://b:2/15/"],
        ["--broadcast_adapter=redis", "--redis_url=redis://master", "--redis_sentinels=:pw@a:1,b"],
        ["--broadcast_adapter=nats", "--nats_servers=nats://a:4222,tls://user:pw@b"],
        ["--broadcast_adapter=nats", "--nats_channel=app.broadcasts"],
        ["--broadcast_adapter=nats", "--embed_nats"],
        ["--broadcast_adapter=nats", "--embed_nats", "--enats_addr=nats://t@h:1", "--nats_servers=nats://t@h:1"],
        ["--redis_url=nonsense", "--nats_servers=nonsense"],  # unused
    ]
    for argv in cases:
        with subtests.test(argv=argv):
            require_startable(load(["--public", *argv], {}))


def test_invalid_redis_and_nats_settings_are_rejected_without_showing_the_url(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--pubsub=redis"], "--pubsub=redis connects nodes, but --broker=memory numbers messages on each node separately"),
        (["--pubsub=nats"], "Set --broker=nats too"),
        (["--broadcast_adapter=redisx", "--redis_url=http://hush"], "--redis_url must be redis://"),
        (["--broadcast_adapter=redis", "--redis_url=localhost:6379"], "--redis_url must be redis://"),
        (["--broadcast_adapter=redis", "--redis_url=redis://hush:port"], "--redis_url must be redis://"),
        (
            ["--broadcast_adapter=redis", "--redis_url=redis://host/hush"],
            "--redis_url may have a database number after the host",
        ),
        (
            ["--broadcast_adapter=redis", "--redis_url=redis://host/1/2"],
            "--redis_url may have a database number after the host",
        ),
        (["--broadcast_adapter=redis", "--redis_url=redis://host/-1"], "--redis_url may have a database number after the host"),
        (
            ["--broker=redis", "--redis_url=redis://a:1,rediss://b:2/hush"],
            "--redis_url may have a database number after the host",
        ),
        (["--broker=redis", "--redis_url=redis://master/hush", "--redis_sentinels=a:1"], "and no other path"),
        (["--broadcast_adapter=redis", "--redis_sentinels=hush:port"], "--redis_sentinels must list host:port"),
        (["--broadcast_adapter=nats", "--nats_servers=hush:4222"], "--nats_servers must list nats://"),
        (["--broadcast_adapter=nats", "--nats_servers="], "--nats_servers must list nats://"),
        (
            ["--broadcast_adapter=nats", "--embed_nats", "--nats_servers=nats://hush:1"],
            "--embed_nats and --nats_servers name different NATS servers",
        ),
        (["--broadcast_adapter=redisx", "--redisx_stream="], "--redisx_stream must be a key"),
        (["--broadcast_adapter=redisx", f"--redisx_stream={'x' * 201}"], "--redisx_stream must be a key of 1 to 200 bytes"),
        (["--broadcast_adapter=redisx", "--redisx_group="], "--redisx_group must name"),
        (["--broadcast_adapter=redis", "--redis_channel="], "--redis_channel must name"),
        (["--broadcast_adapter=nats", "--nats_channel=a b"], "--nats_channel must be a subject"),
        (["--broadcast_adapter=nats", "--nats_channel=a..b"], "--nats_channel must be a subject"),
    ]
    for argv, message in cases:
        with subtests.test(argv=argv):
            with pytest.raises(UserMistake, match=re.escape(message)) as rejected:
                require_startable(load(["--public", *argv], {}))
            assert "hush" not in str(rejected.value)  # a URL may hold a password


def test_probably_unintended_settings_cause_one_warning(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--broadcast_adapter=redis"], "publications by redis have no position and no history"),
        (["--broadcast_adapter=redis,nats"], "publications by nats and redis have no position"),
        (["--broadcast_adapter=redisx", "--broker=redis", "--dedup_ttl=20s"], "may be published twice"),
        (["--broadcast_adapter=redisx"], "several nodes divide the redisx entries"),
        (
            ["--broker=nats", "--embed_nats", "--enats_cluster=nats://127.0.0.1:6222"],
            "set --nats_replicas=3 to keep three copies",
        ),
        (["--broadcast_adapter=http,nats", "--embed_nats"], "applications cannot publish to the embedded NATS"),
        (["--redis_url=redis://a"], "--redis_url: unused settings; set --broker=redis"),
        (
            ["--embed_nats", "--enats_addr=nats://127.0.0.1:4300"],
            "--embed_nats, --enats_addr: unused settings; set --broker=nats",
        ),
        (["--max_stream_name=1000"], "names too long for --max_identifier"),
    ]
    for argv, warning in cases:
        with subtests.test(argv=argv):
            [reported] = startup_warnings(load(argv, {}))

            assert warning in reported


def test_consistent_settings_cause_no_warning(subtests: pytest.Subtests) -> None:
    cases: list[list[str]] = [
        [],
        ["--broadcast_adapter="],
        ["--broadcast_adapter=http,redis"],
        ["--broadcast_adapter=redisx,nats", "--broker=redis"],
        ["--broadcast_adapter=redis", "--history_limit=0"],
        ["--dedup_ttl=1s"],
        ["--broker=redis", "--redis_url=redis://a"],
        ["--broker=nats", "--embed_nats"],
        ["--broadcast_adapter=http,nats", "--embed_nats", "--enats_addr=nats://token@127.0.0.1"],
        ["--presets=broker", "--embed_nats"],
        ["--redis_channel=c", "--nats_channel=c"],
        ["--max_stream_name=1000", "--max_identifier=10KiB"],
    ]
    for argv in cases:
        with subtests.test(argv=argv):
            assert startup_warnings(load(argv, {})) == []
