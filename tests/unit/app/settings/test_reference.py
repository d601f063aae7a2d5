"""Settings as help text, table, TOML and Markdown."""

from pathlib import Path

import pytest

from ropewalk.app.settings import help_text, load
from ropewalk.app.settings.reference import as_markdown, as_table, as_toml
from ropewalk.app.settings.sections import SECTIONS, SETTINGS

REFERENCE = Path(__file__).parents[4] / "docs" / "reference" / "settings.md"


def test_reference_page_is_up_to_date() -> None:
    assert REFERENCE.read_text(encoding="utf-8") == as_markdown(), "run `make docs`"


def test_help_names_every_section_and_flag() -> None:
    text = help_text("ropewalk serve [SETTINGS]", "start a server")

    assert [section for section in SECTIONS if f"\n[{section}] " not in text] == []
    assert [setting.flag for setting in SETTINGS.values() if f"\n  {setting.flag} " not in text] == []


def test_table_shows_values_and_origins_but_no_secret(tmp_path: Path) -> None:
    table = as_table(load(["--secret", "hush-hush", "--history_ttl", "60"], {"PORT": "9"}, tmp_path))
    rows = {row.split()[0]: " ".join(row.split()[1:]) for row in table.splitlines()}

    assert rows["auth.secret"] == "(set) flag --secret"
    assert rows["broker.history_ttl"] == "60s flag --history_ttl"
    assert rows["server.port"] == "9 variable PORT"
    assert "hush-hush" not in table


def test_password_inside_a_url_is_hidden(tmp_path: Path, subtests: pytest.Subtests) -> None:
    for password in ["hush-hush", "hu/sh", "hu@sh", "hu,sh"]:
        with subtests.test(password=password):
            settings = load(
                ["--rpc_host", f"http://me:{password}@app.test/rpc", "--headers", f"x,http://me:{password}@y"], {}, tmp_path
            )
            for shown in (as_table(settings), as_toml(settings)):
                assert password not in shown
                assert "http://(set)@app.test/rpc" in shown
            assert '\n# rpc_host = "http://(set)@app.test/rpc"' in as_toml(settings)  # commented out: it would not work


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("redis_url", "redis://me:hush@a", "redis://(set)@a"),
        ("redis_url", "redis://me:hu sh@a", "redis://(set)@a"),
        ("redis_url", "me:hush@a", "(set)@a"),
        ("redis_url", "redis://a?db=1&password=hush@x&timeout=2", "redis://a?db=1&password=(set)&timeout=2"),
        ("redis_sentinels", "a:1,me:hush@b:2", "(set)@b:2"),
        ("redis_sentinels", ":hush@a:1,me:hush@b:2,c:3", "(set)@b:2,c:3"),
        ("nats_servers", "me:hush@a,nats://b", "(set)@a,nats://b"),
        ("nats_servers", "tls://hush@a", "tls://(set)@a"),
        ("enats_addr", "hush@127.0.0.1:0", "(set)@127.0.0.1:0"),
        ("enats_cluster", "me:hush@127.0.0.1", "(set)@127.0.0.1"),
        ("enats_cluster_routes", "nats://me:hush@a,me:hush@b", "nats://(set)@b"),
        ("rpc_host", "me:hush@a:50051", "(set)@a:50051"),
        ("rpc_host", "http://a/rpc?token=hush&v=2&Api-Key=hush", "http://a/rpc?token=(set)&v=2&Api-Key=(set)"),
    ],
)
def test_password_in_an_address_is_hidden(name: str, value: str, shown: str, tmp_path: Path) -> None:
    settings = load([f"--{name}={value}"], {}, tmp_path)
    [row] = [row.split() for row in as_table(settings).splitlines() if f".{name} " in row]
    assert row[1] == shown
    assert "hush" not in as_toml(settings) + repr(settings)


def test_address_without_credentials_is_shown(tmp_path: Path) -> None:
    settings = load(["--redis_sentinels=a:1,b:2", "--data_dir=/srv/me@host"], {}, tmp_path)
    table = as_table(settings)
    assert "a:1,b:2" in table
    assert "/srv/me@host" in table
    assert '\nredis_sentinels = ["a:1", "b:2"]' in as_toml(settings)


def test_toml_round_trip_keeps_all_settings_but_secrets(tmp_path: Path) -> None:
    (tmp_path / "first.toml").write_text('[[streams]]\npattern = "a \\"b\\" *"\nhistory_ttl = "90s"\nslow_consumer = "drop"\n')
    flags = ["--config_path=first.toml", "--jwt_param", "007", "--path", "/a,/b", "--history_ttl", "1500ms", "--public"]
    first = load(flags, {"ROPEWALK_SECRET": "hush-hush"}, tmp_path)

    (tmp_path / "second.toml").write_text(as_toml(first))
    second = load(["--config_path=second.toml"], {}, tmp_path)

    sections = [section for section in SECTIONS if section != "auth"]
    assert [getattr(second, section) for section in sections] == [getattr(first, section) for section in sections]
    assert second.streams == first.streams
    assert second.auth.public
    assert second.auth.secret == ""
    assert "hush-hush" not in as_toml(first)
