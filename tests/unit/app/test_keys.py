"""The certificate of a server: errors name the unusable file."""

from pathlib import Path

import pytest

from ropewalk.app.keys import tls_context
from ropewalk.app.settings import Settings, load
from ropewalk.model.errors import UserMistake

FIXTURES = Path(__file__).parents[2] / "fixtures"
CERTIFICATE, KEY = FIXTURES / "tls_cert.pem", FIXTURES / "tls_key.pem"
ANOTHER_KEY = FIXTURES / "tls_renewed_key.pem"


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
        assert error(certificate, key).startswith(f"--ssl_cert {certificate} and --ssl_key {key} are no certificate chain")
