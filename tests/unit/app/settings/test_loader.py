"""Settings: from flags, environment and file to one object, and who wins."""

import re
from pathlib import Path

import pytest

from ropewalk.app.settings import Settings, SettingsCopy, load, preset_choices
from ropewalk.app.settings.declarations import Setting, declared_in
from ropewalk.app.settings.sections import SECTIONS, SETTINGS
from ropewalk.app.settings.values import COUNT, DURATION, MILLISECONDS, SIZE
from ropewalk.model.errors import UserMistake
from ropewalk.model.rules import SlowPolicy, StreamRule

NUMBERS = (COUNT, DURATION, MILLISECONDS, SIZE)
PLAIN_ZERO = {
    *("presence_ttl", "resume_patience", "dedup_ttl", "dedup_limit", "archive_refresh"),  # nothing is kept or waited for
    *("shutdown_delay", "shutdown_spread", "shutdown_timeout"),
    "journal_shards",  # refused with its upper bound
}


def from_toml(text: str, directory: Path) -> Settings:
    (directory / "ropewalk.toml").write_text(text)
    return load([], {}, directory)


def test_without_anything_written_every_setting_has_its_default(tmp_path: Path) -> None:
    settings = load([], {}, tmp_path)

    assert settings.server.port == 8080
    assert settings.broker.history_ttl == 300.0
    assert settings.limits.max_conn == 65536
    assert set(settings.origins.values()) == {"default"}


def test_a_setting_has_one_name_in_all_sections() -> None:
    assert len(SETTINGS) == sum(len(list(declared_in(section, holder))) for section, holder in SECTIONS.items())


def test_every_setting_can_be_written_as_flag_variable_and_key(tmp_path: Path) -> None:
    for setting in SETTINGS.values():
        shown = setting.declared.kind.show(setting.default)
        expected = getattr(getattr(Settings(), setting.section), setting.name)
        by_flag = load([f"{setting.flag}={shown}"], {}, tmp_path)
        assert getattr(getattr(by_flag, setting.section), setting.name) == expected
        assert by_flag.origins[setting.name] == f"flag {setting.flag}"
        if shown:
            by_variable = load([], {setting.variables[-1]: shown}, tmp_path)
            assert by_variable.origins[setting.name] == f"variable ROPEWALK_{setting.name.upper()}"


@pytest.mark.parametrize(
    ("written", "winner", "origin"),
    [
        ((), 8080, "default"),
        (("file",), 1, "file"),
        (("file", "PORT"), 2, "variable PORT"),
        (("file", "PORT", "ANYCABLE_PORT"), 3, "variable ANYCABLE_PORT"),
        (("file", "PORT", "ANYCABLE_PORT", "ROPEWALK_PORT"), 4, "variable ROPEWALK_PORT"),
        (("file", "PORT", "ANYCABLE_PORT", "ROPEWALK_PORT", "flag"), 5, "flag --port"),
    ],
)
def test_the_stronger_source_wins(written: tuple[str, ...], winner: int, origin: str, tmp_path: Path) -> None:
    environ = {"PORT": "2", "ANYCABLE_PORT": "3", "ROPEWALK_PORT": "4"}
    if "file" in written:
        (tmp_path / "ropewalk.toml").write_text("[server]\nport = 1\n")

    settings = load(["--port", "5"] if "flag" in written else [], {k: v for k, v in environ.items() if k in written}, tmp_path)

    assert settings.server.port == winner
    assert settings.origins["port"].startswith(origin)


def test_dash_and_underscore_are_one_in_flags(tmp_path: Path) -> None:
    assert load(["--history-limit", "7"], {}, tmp_path) == load(["--history_limit=7"], {}, tmp_path)


def test_a_bare_switch_is_on_and_takes_no_value_from_the_next_flag(tmp_path: Path) -> None:
    settings = load(["--noauth", "--streams_presence=false", "--port", "0"], {}, tmp_path)

    assert settings.auth.noauth
    assert not settings.auth.streams_presence
    assert settings.server.port == 0


def test_of_a_repeated_flag_the_last_wins(tmp_path: Path) -> None:
    assert load(["--port", "1", "--port", "2"], {}, tmp_path).server.port == 2


@pytest.mark.parametrize(
    ("argv", "message"),
    [
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
    ],
)
def test_a_wrong_flag_is_a_mistake_that_says_how_to_mend_it(argv: list[str], message: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=message.replace("?", r"\?")):
        load(argv, {}, tmp_path)


@pytest.mark.parametrize("setting", [each for each in SETTINGS.values() if each.declared.positive], ids=lambda each: each.name)
def test_what_would_make_a_server_useless_at_0_is_refused_from_every_source(setting: Setting, tmp_path: Path) -> None:
    (tmp_path / "ropewalk.toml").write_text(f"[{setting.section}]\n{setting.name} = 0\n")
    for argv, environ in (
        ([f"--{setting.name}=0", "--config_path="], {}),
        (["--config_path="], {setting.variables[-1]: "0"}),
        ([], {}),
    ):
        with pytest.raises(UserMistake, match=f"{setting.name}|{setting.name.upper()} wants more than 0"):
            load(argv, environ, tmp_path)


@pytest.mark.parametrize(
    "setting", [each for each in SETTINGS.values() if each.declared.kind in NUMBERS], ids=lambda each: each.name
)
def test_a_setting_that_may_be_0_says_what_that_means_or_means_nothing_special(setting: Setting) -> None:
    told = setting.declared.positive or re.search(r"\b0\b", setting.declared.help) or setting.name in PLAIN_ZERO

    assert told, "declare it with positive=True, or say in its help what 0 means"


def test_a_wrong_variable_is_named() -> None:
    with pytest.raises(UserMistake, match="variable ANYCABLE_PORT wants"):
        load([], {"ANYCABLE_PORT": "tcp://10.0.0.1:80"})


def test_an_empty_variable_is_no_number_but_an_empty_text(tmp_path: Path) -> None:
    settings = load([], {"ROPEWALK_PORT": "", "ROPEWALK_METRICS_HTTP": ""}, tmp_path)

    assert settings.server.port == 8080
    assert settings.operations.metrics_http == ""


def test_variables_that_are_no_settings_are_let_be(tmp_path: Path) -> None:
    assert load([], {"ROPEWALK_SERVICE_HOST": "10.0.0.1"}, tmp_path) == load([], {}, tmp_path)


def test_the_file_has_sections_and_rules_for_streams(tmp_path: Path) -> None:
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
        [[streams]]
        pattern = "ticker"
        """,
        tmp_path,
    )

    assert (settings.broker.history_limit, settings.broker.history_ttl) == (5, 60.0)
    assert settings.server.path == ("/cable", "/ws")
    assert settings.streams == (StreamRule("chat/*", 1000, 60.0, SlowPolicy.DROP), StreamRule("ticker"))
    assert settings.origins["history_limit"] == settings.origins["streams"] == f"file {tmp_path / 'ropewalk.toml'}"


@pytest.mark.parametrize(
    ("text", "message"),
    [
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
        ("[[streams]]\npattern = 'x'\n[[streams]]\npattern = 'x'", r"\[\[streams\]\] 2: an earlier rule has the pattern 'x'"),
        ("[limits]\nmax_subscriptions = 0", r"\[limits\] max_subscriptions wants more than 0"),
        ("[streams]\npattern = 'x'", r"each under \[\[streams\]\]"),
    ],
)
def test_a_wrong_file_is_a_mistake_that_says_how_to_mend_it(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UserMistake, match=message):
        from_toml(text, tmp_path)


def test_a_copy_is_read_in_the_place_of_the_file_which_is_still_the_one_to_be_blamed(tmp_path: Path) -> None:
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


def test_a_copy_of_a_file_that_is_not_known_is_read_too(tmp_path: Path) -> None:
    copy = tmp_path / "copy.toml"
    copy.write_text("[server]\nport = 7000\n")
    assert load([], {}, instead=SettingsCopy(copy, None)).server.port == 7000


def test_a_file_can_be_named_or_refused(tmp_path: Path) -> None:
    (tmp_path / "ropewalk.toml").write_text("[server]\nport = 1\n")
    (tmp_path / "other.toml").write_text("[server]\nport = 2\n")

    assert load(["--config-path", "other.toml"], {}, tmp_path).server.port == 2
    assert load([], {"ROPEWALK_CONFIG_PATH": "other.toml"}, tmp_path).server.port == 2
    assert load(["--config_path="], {}, tmp_path).server.port == 8080


NATS, NO_ENGINE = ("nats", ("http", "nats")), ("memory", ("http",))
REDIS = ("redis", ("http", "redisx", "redis"))


@pytest.mark.parametrize(
    ("argv", "environ", "chosen", "because"),
    [
        ([], {}, NO_ENGINE, "neither Redis nor NATS is configured"),
        (["--redis_url=redis://r"], {}, REDIS, "redis_url is set by flag --redis_url"),
        ([], {"REDIS_URL": "redis://r"}, REDIS, "redis_url is set by variable REDIS_URL"),
        (["--redis_sentinels=a:1"], {}, REDIS, "redis_sentinels is set by flag --redis_sentinels"),
        (["--nats_servers=nats://n"], {}, NATS, "nats_servers is set by flag --nats_servers"),
        (["--embed_nats"], {}, NATS, "embed_nats is set by flag --embed_nats"),
        (["--embed_nats=false"], {}, NO_ENGINE, "neither Redis nor NATS is configured"),
        (["--embed_nats"], {"REDIS_URL": "redis://r"}, NATS, "embed_nats is set by flag --embed_nats"),
        (["--nats_servers=nats://n"], {"REDIS_URL": "redis://r"}, REDIS, "redis_url is set by variable REDIS_URL"),
    ],
)
def test_the_preset_broker_goes_by_what_is_configured(
    argv: list[str], environ: dict[str, str], chosen: tuple[str, tuple[str, ...]], because: str, tmp_path: Path
) -> None:
    settings = load(["--presets=broker", *argv], environ, tmp_path)
    broker, adapters = chosen

    assert (settings.broker.broker, settings.broadcast.broadcast_adapter) == chosen
    assert settings.origins["broker"] == f"preset broker: {because}"
    assert preset_choices(settings) == [
        f"preset broker: {because}; so --broadcast_adapter={','.join(adapters)} --broker={broker}"
    ]


def test_a_preset_fills_only_what_nobody_wrote(tmp_path: Path) -> None:
    settings = load(["--presets=broker", "--broadcast_adapter=", "--redis_url=redis://u:hush@r"], {}, tmp_path)
    reason = "preset broker: redis_url is set by flag --redis_url"

    assert settings.broadcast.broadcast_adapter == ()
    assert preset_choices(settings) == [f"{reason}; so --broker=redis"]


def test_a_preset_may_be_chosen_in_the_file(tmp_path: Path) -> None:
    assert from_toml('[server]\npresets = ["broker"]', tmp_path).origins["broker"].startswith("preset broker")


def test_without_a_preset_nothing_is_said_of_one(tmp_path: Path) -> None:
    assert preset_choices(load([], {"REDIS_URL": "redis://r"}, tmp_path)) == []


@pytest.mark.parametrize("name", ["broadcast_adapter", "broadcaster"])
def test_another_name_works_everywhere(name: str, tmp_path: Path) -> None:
    wanted = ("http", "redisx")
    upper = name.upper()

    assert load([f"--{name}=http,redisx"], {}, tmp_path).broadcast.broadcast_adapter == wanted
    assert load([f"--{name.replace('_', '-')}", "http,redisx"], {}, tmp_path).broadcast.broadcast_adapter == wanted
    for variable in (f"ROPEWALK_{upper}", f"ANYCABLE_{upper}"):
        settings = load([], {variable: "http,redisx"}, tmp_path)
        assert settings.broadcast.broadcast_adapter == wanted
        assert settings.origins["broadcast_adapter"] == f"variable {variable}"
    assert from_toml(f'[broadcast]\n{name} = ["http", "redisx"]', tmp_path).broadcast.broadcast_adapter == wanted


def test_replicas_are_those_of_nats(tmp_path: Path) -> None:
    assert load(["--broker", "nats", "--replicas", "3"], {}, tmp_path).nats.nats_replicas == 3


@pytest.mark.parametrize(
    ("argv", "environ", "file", "names"),
    [
        (["--broadcaster=http", "--broadcast-adapter=http"], {}, "", "flags: --broadcaster and --broadcast_adapter"),
        (
            [],
            {"ANYCABLE_BROADCASTER": "http", "ROPEWALK_BROADCAST_ADAPTER": ""},
            "",
            "variables: ANYCABLE_BROADCASTER and ROPEWALK_BROADCAST_ADAPTER",
        ),
        ([], {}, "[broadcast]\nbroadcaster = []\nbroadcast-adapter = []", "broadcaster and broadcast-adapter"),
    ],
)
def test_one_setting_under_two_names_in_one_place_is_refused(
    argv: list[str], environ: dict[str, str], file: str, names: str, tmp_path: Path
) -> None:
    (tmp_path / "ropewalk.toml").write_text(file)
    with pytest.raises(UserMistake, match=re.escape(f"{names} are one setting under two names; write one of them")):
        load(argv, environ, tmp_path)


def test_the_stronger_place_wins_whatever_name_it_uses(tmp_path: Path) -> None:
    settings = load(["--broadcaster=redis"], {"ROPEWALK_BROADCAST_ADAPTER": "nats"}, tmp_path)

    assert settings.broadcast.broadcast_adapter == ("redis",)


def test_demo_means_public_with_sse_and_public_means_open_streams(tmp_path: Path) -> None:
    settings = load(["--demo"], {}, tmp_path)

    assert settings.auth.public
    assert settings.auth.noauth
    assert settings.auth.public_streams
    assert settings.sse.sse
    assert settings.origins["noauth"] == "mode public"


def test_a_mode_that_is_off_fills_nothing(tmp_path: Path) -> None:
    assert load(["--public=false"], {}, tmp_path).origins["noauth"] == "default"


def test_what_was_written_stands_against_a_mode(tmp_path: Path) -> None:
    assert not load(["--demo", "--sse=false"], {}, tmp_path).sse.sse


def test_secrets_are_not_in_the_repr(tmp_path: Path) -> None:
    argv = [f"{setting.flag}=hush-hush" for setting in SETTINGS.values() if setting.declared.secret]

    assert len(argv) >= 7
    assert "hush-hush" not in repr(load(argv, {}, tmp_path))
