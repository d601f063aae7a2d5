"""The keys of a server, and its certificate: errors name the unusable file."""

from collections import Counter
from pathlib import Path

import pytest

from ropewalk.app.keys import build_guards, derive_keys, tls_context
from ropewalk.app.settings import Settings, load
from ropewalk.model.errors import UserMistake

FIXTURES = Path(__file__).parents[2] / "fixtures"
CERTIFICATE, KEY = FIXTURES / "tls_cert.pem", FIXTURES / "tls_key.pem"
ANOTHER_KEY = FIXTURES / "tls_renewed_key.pem"


def keys(*flags: str) -> dict[str, object]:
    return dict(vars(derive_keys(load(flags, {"ROPEWALK_CONFIG_PATH": ""}))))


def test_ring_key_is_derived_from_the_secret_and_unlike_all_other_keys() -> None:
    known = keys("--secret", "s")
    others = [value for name, value in known.items() if name not in ("ring", "ring_changes")]
    assert known["ring"]
    assert known["ring_changes"]
    assert known["ring"] != known["ring_changes"]
    assert not {known["ring"], known["ring_changes"]} & {*others, "s"}


def test_explicit_ring_key_replaces_the_derived_one_and_no_other_key() -> None:
    derived, explicit = keys("--secret", "s"), keys("--secret", "s", "--ring_key", "k" * 16)
    assert explicit["ring"] == "k" * 16
    assert {name for name in derived if derived[name] != explicit[name]} == {"ring", "ring_changes"}


def test_public_mode_opens_everything_but_changes_of_the_ring() -> None:
    guards = build_guards(derive_keys(load(["--public", "--secret", "s"], {"ROPEWALK_CONFIG_PATH": ""})), Counter())
    assert guards.ring_changes is not None
    assert not guards.ring_changes.knows("")
    assert [guard is not None and guard.knows("") for guard in (guards.api, guards.broadcast, guards.journal)] == [True] * 3
    without = build_guards(derive_keys(load(["--public"], {"ROPEWALK_CONFIG_PATH": ""})), Counter())
    assert without.ring_changes is None


def with_tls(certificate: Path, key: Path) -> Settings:
    return load(["--ssl_cert", str(certificate), "--ssl_key", str(key)], {"ROPEWALK_CONFIG_PATH": ""})


def error(certificate: Path, key: Path) -> str:
    with pytest.raises(UserMistake) as mistake:
        tls_context(with_tls(certificate, key))
    return str(mistake.value)


def test_certificate_with_its_key_is_loaded() -> None:
    assert tls_context(with_tls(CERTIFICATE, KEY)) is not None


def test_unreadable_file_is_named(tmp_path: Path) -> None:
    missing = tmp_path / "missing.pem"
    assert error(missing, KEY) == f"--ssl_cert {missing} cannot be read: No such file or directory"
    assert error(CERTIFICATE, missing) == f"--ssl_key {missing} cannot be read: No such file or directory"
    assert error(CERTIFICATE, tmp_path) == f"--ssl_key {tmp_path} cannot be read: Is a directory"


def test_mismatched_files_are_both_named(tmp_path: Path) -> None:
    nonsense = tmp_path / "nonsense.pem"
    nonsense.write_text("nonsense")
    for certificate, key in ((CERTIFICATE, ANOTHER_KEY), (nonsense, KEY), (CERTIFICATE, nonsense)):
        assert error(certificate, key).startswith(f"--ssl_cert {certificate} and --ssl_key {key} must be a certificate chain")
