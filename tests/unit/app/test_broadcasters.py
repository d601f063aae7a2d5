"""Settings of Redis and NATS: valid combinations, errors, warnings, and a missing library."""

import re
import sys

import pytest

from ropewalk.app.composition import build
from ropewalk.app.settings import doubts, load, require_startable
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install


def test_valid_combinations_can_start(subtests: pytest.Subtests) -> None:
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


def test_invalid_combinations_are_rejected_without_showing_the_url(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--pubsub=redis"], "--pubsub=redis joins several nodes, and --broker=memory gives each of them positions of its own"),
        (["--pubsub=nats"], "Set --broker=nats too"),
        (["--broadcast_adapter=redisx", "--redis_url=http://hush"], "--redis_url wants redis://"),
        (["--broadcast_adapter=redis", "--redis_url=localhost:6379"], "--redis_url wants redis://"),
        (["--broadcast_adapter=redis", "--redis_url=redis://hush:port"], "--redis_url wants redis://"),
        (["--broadcast_adapter=redis", "--redis_url=redis://host/hush"], "--redis_url wants the number of a database"),
        (["--broadcast_adapter=redis", "--redis_url=redis://host/1/2"], "--redis_url wants the number of a database"),
        (["--broadcast_adapter=redis", "--redis_url=redis://host/-1"], "--redis_url wants the number of a database"),
        (["--broker=redis", "--redis_url=redis://a:1,rediss://b:2/hush"], "--redis_url wants the number of a database"),
        (["--broker=redis", "--redis_url=redis://master/hush", "--redis_sentinels=a:1"], "or nothing there"),
        (["--broadcast_adapter=redis", "--redis_sentinels=hush:port"], "--redis_sentinels wants host:port"),
        (["--broadcast_adapter=nats", "--nats_servers=hush:4222"], "--nats_servers wants nats://"),
        (["--broadcast_adapter=nats", "--nats_servers="], "--nats_servers wants nats://"),
        (["--broadcast_adapter=nats", "--embed_nats", "--nats_servers=nats://hush:1"], "--embed_nats starts a NATS of its own"),
        (["--broadcast_adapter=redisx", "--redisx_stream="], "--redisx_stream wants a key"),
        (["--broadcast_adapter=redisx", f"--redisx_stream={'x' * 201}"], "--redisx_stream wants a key of 1 to 200 bytes"),
        (["--broadcast_adapter=redisx", "--redisx_group="], "--redisx_group wants the name"),
        (["--broadcast_adapter=redis", "--redis_channel="], "--redis_channel wants the name"),
        (["--broadcast_adapter=nats", "--nats_channel=a b"], "--nats_channel wants a subject"),
        (["--broadcast_adapter=nats", "--nats_channel=a..b"], "--nats_channel wants a subject"),
    ]
    for argv, message in cases:
        with subtests.test(argv=argv):
            with pytest.raises(UserMistake, match=re.escape(message)) as rejected:
                require_startable(load(["--public", *argv], {}))
            assert "hush" not in str(rejected.value)  # a URL may hold a password


@pytest.mark.parametrize(
    ("adapters", "library", "extra"), [("redisx", "redis", "redis"), ("redis", "redis", "redis"), ("http,nats", "nats", "nats")]
)
def test_missing_library_is_reported_with_the_extra_to_install(
    adapters: str, library: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours = ("ropewalk.adapters.broadcasters", "ropewalk.connections")
    for name in [name for name in sys.modules if name.partition(".")[0] == library or name.startswith(ours)]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, library, None)
    name = adapters.rpartition(",")[2]
    missing = rf"{name} needs {library}[\w.]*, which is not installed: {re.escape(install(extra))}"
    with pytest.raises(UserMistake, match=missing):
        build(load(["--public", f"--broadcast_adapter={adapters}"], {}))


def test_doubtful_combination_is_reported_once(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--broadcast_adapter=redis"], "publications by redis have no position and no history"),
        (["--broadcast_adapter=redis,nats"], "publications by nats and redis have no position"),
        (["--broadcast_adapter=redisx", "--broker=redis", "--dedup_ttl=20s"], "may be registered twice"),
        (["--broadcast_adapter=redisx"], "each registers a part of what redisx brings"),
        (["--broker=nats", "--embed_nats", "--enats_cluster=nats://127.0.0.1:6222"], "--nats_replicas=3 keeps everything"),
        (["--broadcast_adapter=http,nats", "--embed_nats"], "no application can publish to the embedded NATS"),
        (["--redis_url=redis://a"], "--redis_url: nothing uses them; --broker=redis"),
        (
            ["--embed_nats", "--enats_addr=nats://127.0.0.1:4300"],
            "--embed_nats, --enats_addr: nothing uses them",
        ),
        (["--max_stream_name=1000"], "names that may not fit into an identifier of --max_identifier bytes"),
    ]
    for argv, doubt in cases:
        with subtests.test(argv=argv):
            [reported] = doubts(load(argv, {}))

            assert doubt in reported


def test_sound_combination_is_not_reported(subtests: pytest.Subtests) -> None:
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
            assert doubts(load(argv, {})) == []
