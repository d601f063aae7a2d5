"""Settings from flags, environment, file, presets and modes, and their precedence."""

import re
from pathlib import Path

import pytest

from ropewalk.app.settings import Settings, SettingsCopy, load, preset_choices
from ropewalk.app.settings.declare import COUNT, DURATION, MILLISECONDS, SIZE, declared_in
from ropewalk.app.settings.sections import SECTIONS, SETTINGS
from ropewalk.model.errors import UserMistake
from ropewalk.model.rules import SinceGaps, SlowPolicy, StreamRule

NUMBERS = (COUNT, DURATION, MILLISECONDS, SIZE)
PLAIN_ZERO = {
    *("presence_ttl", "resume_timeout", "dedup_ttl", "dedup_limit", "archive_refresh"),  # 0 switches it off
    *("shutdown_delay", "shutdown_spread", "shutdown_timeout"),
    "journal_shards",  # checked together with its upper bound
}


def from_toml(text: str, directory: Path) -> Settings:
    (directory / "ropewalk.toml").write_text(text)
    return load([], {}, directory)


def test_defaults_apply_without_any_source(tmp_path: Path) -> None:
    settings = load([], {}, tmp_path)

    assert settings.server.port == 8080
    assert settings.broker.history_ttl == 300.0
    assert settings.limits.max_conn == 65536
    assert set(settings.origins.values()) == {"default"}


def test_setting_names_are_unique_across_sections() -> None:
    assert len(SETTINGS) == sum(len(list(declared_in(section, holder))) for section, holder in SECTIONS.items())


def test_every_setting_can_be_given_as_flag_and_variable(tmp_path: Path) -> None:
    for setting in SETTINGS.values():
        shown = setting.declared.kind.show(setting.default)
        expected = getattr(getattr(Settings(), setting.section), setting.name)
        by_flag = load([f"{setting.flag}={shown}"], {}, tmp_path)
        assert getattr(getattr(by_flag, setting.section), setting.name) == expected
        assert by_flag.origins[setting.name] == f"flag {setting.flag}"
        if shown:
            by_variable = load([], {setting.variables[-1]: shown}, tmp_path)
            assert by_variable.origins[setting.name] == f"variable ROPEWALK_{setting.name.upper()}"


def test_source_with_the_highest_precedence_wins(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[tuple[str, ...], int, str]] = [
        ((), 8080, "default"),
        (("file",), 1, "file"),
        (("file", "PORT"), 2, "variable PORT"),
        (("file", "PORT", "ANYCABLE_PORT"), 3, "variable ANYCABLE_PORT"),
        (("file", "PORT", "ANYCABLE_PORT", "ROPEWALK_PORT"), 4, "variable ROPEWALK_PORT"),
        (("file", "PORT", "ANYCABLE_PORT", "ROPEWALK_PORT", "flag"), 5, "flag --port"),
    ]
    for written, winner, origin in cases:
        with subtests.test(written=written):
            environ = {"PORT": "2", "ANYCABLE_PORT": "3", "ROPEWALK_PORT": "4"}
            if "file" in written:
                (tmp_path / "ropewalk.toml").write_text("[server]\nport = 1\n")

            settings = load(
                ["--port", "5"] if "flag" in written else [], {k: v for k, v in environ.items() if k in written}, tmp_path
            )

            assert settings.server.port == winner
            assert settings.origins["port"].startswith(origin)


def test_flags_accept_dashes_and_underscores(tmp_path: Path) -> None:
    assert load(["--history-limit", "7"], {}, tmp_path) == load(["--history_limit=7"], {}, tmp_path)


def test_switch_without_a_value_is_on(tmp_path: Path) -> None:
    settings = load(["--noauth", "--streams_presence=false", "--port", "0"], {}, tmp_path)

    assert settings.auth.noauth
    assert not settings.auth.streams_presence
    assert settings.server.port == 0


def test_last_of_repeated_flags_wins(tmp_path: Path) -> None:
    assert load(["--port", "1", "--port", "2"], {}, tmp_path).server.port == 2


def test_invalid_flag_is_rejected_with_a_hint(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str]] = [
        (["--histroy_limit", "3"], "unknown flag --histroy_limit; did you mean --history_limit?"),
        (["--zzzzzz"], "unknown flag --zzzzzz"),
        (["port"], "unexpected argument 'port'"),
        (["-p", "3"], "unexpected argument '-p'"),
        (["--port"], "--port needs a value"),
        (["--port", "--public"], "--port needs a value"),
        (["--port", "http"], "flag --port wants a whole number"),
        (["--history_ttl", "soon"], "flag --history_ttl wants a duration"),
        (["--max_message_size", "0"], "flag --max_message_size wants more than 0, not '0'"),
        (["--app_timeout", "0ms"], "flag --app_timeout wants more than 0"),
        (["--presets", "fly"], "flag --presets knows broker, not 'fly'"),
        (["--config_path", "nowhere.toml"], "cannot read .*nowhere.toml: No such file"),
    ]
    for argv, message in cases:
        with subtests.test(argv=argv), pytest.raises(UserMistake, match=message.replace("?", r"\?")):
            load(argv, {}, tmp_path)


def test_zero_is_rejected_from_every_source_for_positive_settings(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for setting in (each for each in SETTINGS.values() if each.declared.positive):
        (tmp_path / "ropewalk.toml").write_text(f"[{setting.section}]\n{setting.name} = 0\n")
        sources: list[tuple[list[str], dict[str, str]]] = [
            ([f"--{setting.name}=0", "--config_path="], {}),
            (["--config_path="], {setting.variables[-1]: "0"}),
            ([], {}),
        ]
        for argv, environ in sources:
            message = f"({setting.name}|{setting.name.upper()}) wants more than 0"
            with subtests.test(setting=setting.name, argv=argv), pytest.raises(UserMistake, match=message):
                load(argv, environ, tmp_path)


def test_meaning_of_zero_is_documented() -> None:
    undocumented = [
        setting.name
        for setting in SETTINGS.values()
        if setting.declared.kind in NUMBERS
        and not setting.declared.positive
        and not re.search(r"\b0\b", setting.declared.help)
        and setting.name not in PLAIN_ZERO
    ]
    assert undocumented == [], "declare it with positive=True, or explain 0 in its help"


def test_invalid_variable_is_named() -> None:
    with pytest.raises(UserMistake, match="variable ANYCABLE_PORT wants"):
        load([], {"ANYCABLE_PORT": "tcp://10.0.0.1:80"})


def test_empty_variable_is_an_empty_text_but_not_a_number(tmp_path: Path) -> None:
    settings = load([], {"ROPEWALK_PORT": "", "ROPEWALK_METRICS_HTTP": ""}, tmp_path)

    assert settings.server.port == 8080
    assert settings.operations.metrics_http == ""


def test_unknown_variables_are_ignored(tmp_path: Path) -> None:
    assert load([], {"ROPEWALK_SERVICE_HOST": "10.0.0.1"}, tmp_path) == load([], {}, tmp_path)


def test_file_has_sections_and_stream_rules(tmp_path: Path) -> None:
    settings = from_toml(
        """
        [broker]
        history_limit = 5
        history_ttl = "1m"
        [server]
        path = ["/cable", "/ws"]
        [[streams]]
        pattern = "chat/*"
        history_limit = 1000
        history_ttl = 60
        slow_consumer = "drop"
        since_gaps = "reject"
        [[streams]]
        pattern = "ticker"
        """,
        tmp_path,
    )

    assert (settings.broker.history_limit, settings.broker.history_ttl) == (5, 60.0)
    assert settings.server.path == ("/cable", "/ws")
    assert settings.streams == (
        StreamRule("chat/*", 1000, 60.0, SlowPolicy.DROP, SinceGaps.REJECT),
        StreamRule("ticker"),
    )
    assert settings.origins["history_limit"] == settings.origins["streams"] == f"file {tmp_path / 'ropewalk.toml'}"


def test_invalid_file_is_rejected_with_a_hint(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("[broker]\nhistory_limt = 1", r"unknown key history_limt in \[broker\]; did you mean history_limit\?"),
        ("[server]\nhistory_limit = 1", r"history_limit belongs in the section \[broker\], not in \[server\]"),
        ("history_limit = 1", r"history_limit belongs in the section \[broker\]"),
        ("histori_limit = 1", r"unknown key histori_limit; did you mean history_limit\?"),
        ("[brokr]\n", r"unknown section \[brokr\]; did you mean broker\?"),
        ("broker = 'memory'", r"broker is a section"),
        ("[broker]\nhistory_limit = 'many'", r"\[broker\] history_limit wants a whole number"),
        ("[broker\n", "is not TOML"),
        ("[[streams]]\nhistory_limit = 1", r"\[\[streams\]\] 1: a rule needs a pattern"),
        ("[[streams]]\npatern = 'x'", r"unknown key patern; did you mean pattern\?"),
        ("[[streams]]\npattern = 'x'\nslow_consumer = 'wait'", "slow_consumer wants disconnect or drop"),
        ("[[streams]]\npattern = 'x'\nsince_gaps = 'tell'", "since_gaps wants confirm or reject"),
        (
            "[[streams]]\npattern = 'x'\n[[streams]]\npattern = 'x'",
            r"\[\[streams\]\] 2: an earlier rule has the same pattern 'x'",
        ),
        ("[limits]\nmax_subscriptions = 0", r"\[limits\] max_subscriptions wants more than 0"),
        ("[streams]\npattern = 'x'", r"each under \[\[streams\]\]"),
    ]
    for text, message in cases:
        with subtests.test(text=text), pytest.raises(UserMistake, match=message):
            from_toml(text, tmp_path)


def test_errors_in_a_copy_name_the_original_file(tmp_path: Path) -> None:
    original, copy = tmp_path / "gone.toml", tmp_path / "copy.toml"
    copy.write_text('[server]\nport = 7000\n[[streams]]\npattern = "a/*"\n')
    settings = load([], {}, instead=SettingsCopy(copy, original))
    assert (settings.server.port, settings.origins["port"]) == (7000, f"file {original}")
    assert settings.origins["streams"] == f"file {original}"
    for wrong in ("[server]\nport = true\n", "[server]\nprot = 1\n", "[servre]\n", "server = 1\n", "no TOML", "[[streams]]\n"):
        copy.write_text(wrong)
        with pytest.raises(UserMistake, match=re.escape(str(original))) as raised:
            load([], {}, instead=SettingsCopy(copy, original))
        assert str(copy) not in str(raised.value)


def test_copy_without_an_original_is_read(tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    copy.write_text("[server]\nport = 7000\n")
    assert load([], {}, instead=SettingsCopy(copy, None)).server.port == 7000


def test_file_can_be_chosen_or_disabled(tmp_path: Path) -> None:
    (tmp_path / "ropewalk.toml").write_text("[server]\nport = 1\n")
    (tmp_path / "other.toml").write_text("[server]\nport = 2\n")

    assert load(["--config-path", "other.toml"], {}, tmp_path).server.port == 2
    assert load([], {"ROPEWALK_CONFIG_PATH": "other.toml"}, tmp_path).server.port == 2
    assert load(["--config_path="], {}, tmp_path).server.port == 8080


NATS, NO_ENGINE = ("nats", ("http", "nats")), ("memory", ("http",))
REDIS = ("redis", ("http", "redisx", "redis"))


def test_broker_preset_follows_the_configured_service(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], dict[str, str], tuple[str, tuple[str, ...]], str]] = [
        ([], {}, NO_ENGINE, "neither Redis nor NATS is configured"),
        (["--redis_url=redis://r"], {}, REDIS, "redis_url is set by flag --redis_url"),
        ([], {"REDIS_URL": "redis://r"}, REDIS, "redis_url is set by variable REDIS_URL"),
        (["--redis_sentinels=a:1"], {}, REDIS, "redis_sentinels is set by flag --redis_sentinels"),
        (["--nats_servers=nats://n"], {}, NATS, "nats_servers is set by flag --nats_servers"),
        (["--embed_nats"], {}, NATS, "embed_nats is set by flag --embed_nats"),
        (["--embed_nats=false"], {}, NO_ENGINE, "neither Redis nor NATS is configured"),
        (["--embed_nats"], {"REDIS_URL": "redis://r"}, NATS, "embed_nats is set by flag --embed_nats"),
        (["--nats_servers=nats://n"], {"REDIS_URL": "redis://r"}, REDIS, "redis_url is set by variable REDIS_URL"),
    ]
    for argv, environ, chosen, because in cases:
        with subtests.test(argv=argv, environ=environ):
            settings = load(["--presets=broker", *argv], environ, tmp_path)
            broker, adapters = chosen

            assert (settings.broker.broker, settings.broadcast.broadcast_adapter) == chosen
            assert settings.origins["broker"] == f"preset broker: {because}"
            assert preset_choices(settings) == [
                f"preset broker: {because}; so --broadcast_adapter={','.join(adapters)} --broker={broker}"
            ]


def test_preset_does_not_override_explicit_settings(tmp_path: Path) -> None:
    settings = load(["--presets=broker", "--broadcast_adapter=", "--redis_url=redis://u:hush@r"], {}, tmp_path)
    reason = "preset broker: redis_url is set by flag --redis_url"

    assert settings.broadcast.broadcast_adapter == ()
    assert preset_choices(settings) == [f"{reason}; so --broker=redis"]


def test_preset_can_be_chosen_in_the_file(tmp_path: Path) -> None:
    assert from_toml('[server]\npresets = ["broker"]', tmp_path).origins["broker"].startswith("preset broker")


def test_no_preset_makes_no_choices(tmp_path: Path) -> None:
    assert preset_choices(load([], {"REDIS_URL": "redis://r"}, tmp_path)) == []


def test_alias_works_in_every_source(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for name in ["broadcast_adapter", "broadcaster"]:
        with subtests.test(name=name):
            wanted = ("http", "redisx")
            upper = name.upper()

            assert load([f"--{name}=http,redisx"], {}, tmp_path).broadcast.broadcast_adapter == wanted
            assert load([f"--{name.replace('_', '-')}", "http,redisx"], {}, tmp_path).broadcast.broadcast_adapter == wanted
            for variable in (f"ROPEWALK_{upper}", f"ANYCABLE_{upper}"):
                settings = load([], {variable: "http,redisx"}, tmp_path)
                assert settings.broadcast.broadcast_adapter == wanted
                assert settings.origins["broadcast_adapter"] == f"variable {variable}"
            assert from_toml(f'[broadcast]\n{name} = ["http", "redisx"]', tmp_path).broadcast.broadcast_adapter == wanted


def test_replicas_is_an_alias_of_nats_replicas(tmp_path: Path) -> None:
    assert load(["--broker", "nats", "--replicas", "3"], {}, tmp_path).nats.nats_replicas == 3


def test_resume_patience_is_an_alias_of_resume_timeout(tmp_path: Path) -> None:
    assert load(["--resume_patience", "7s"], {}, tmp_path).broker.resume_timeout == 7.0


def test_setting_under_both_names_in_one_source_is_rejected(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], dict[str, str], str, str]] = [
        (["--broadcaster=http", "--broadcast-adapter=http"], {}, "", "flags: --broadcaster and --broadcast_adapter"),
        (
            [],
            {"ANYCABLE_BROADCASTER": "http", "ROPEWALK_BROADCAST_ADAPTER": ""},
            "",
            "variables: ANYCABLE_BROADCASTER and ROPEWALK_BROADCAST_ADAPTER",
        ),
        ([], {}, "[broadcast]\nbroadcaster = []\nbroadcast-adapter = []", "broadcaster and broadcast-adapter"),
    ]
    for argv, environ, file, names in cases:
        with subtests.test(names=names):
            (tmp_path / "ropewalk.toml").write_text(file)
            with pytest.raises(UserMistake, match=re.escape(f"{names} are the same setting; set only one of them")):
                load(argv, environ, tmp_path)


def test_precedence_of_sources_ignores_aliases(tmp_path: Path) -> None:
    settings = load(["--broadcaster=redis"], {"ROPEWALK_BROADCAST_ADAPTER": "nats"}, tmp_path)

    assert settings.broadcast.broadcast_adapter == ("redis",)


def test_demo_implies_public_and_sse_and_public_implies_open_streams(tmp_path: Path) -> None:
    settings = load(["--demo"], {}, tmp_path)

    assert settings.auth.public
    assert settings.auth.noauth
    assert settings.auth.public_streams
    assert settings.sse.sse
    assert settings.origins["noauth"] == "mode public"


def test_disabled_mode_changes_nothing(tmp_path: Path) -> None:
    assert load(["--public=false"], {}, tmp_path).origins["noauth"] == "default"


def test_mode_does_not_override_explicit_settings(tmp_path: Path) -> None:
    assert not load(["--demo", "--sse=false"], {}, tmp_path).sse.sse


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    argv = [f"{setting.flag}=hush-hush" for setting in SETTINGS.values() if setting.declared.secret]

    assert len(argv) >= 7
    assert "hush-hush" not in repr(load(argv, {}, tmp_path))
