"""Settings of the journal: which one is built, its recovery horizon, its token, and a missing library."""

import re
import sys
from dataclasses import replace

import pytest

from ropewalk.adapters.journals.none import NoJournal
from ropewalk.app.journal import FORMER_RENEWAL, build_journal, horizon
from ropewalk.app.keys import derive_keys
from ropewalk.app.settings import Settings, load, require_startable
from ropewalk.core.signatures import derive
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install_command
from ropewalk.model.rules import StreamRule


def test_no_data_directory_means_no_journal() -> None:
    assert isinstance(build_journal(Settings()), NoJournal)


def test_missing_library_is_reported_with_the_extra_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("pyarrow", "ropewalk.adapters.journals.arrow"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(
        UserMistake, match=re.escape(f"journal needs pyarrow, which is not installed: {install_command('journal')}")
    ):
        build_journal(load(["--public", "--data_dir", "somewhere"], {}))


def test_recovery_horizon_is_the_longest_ttl() -> None:
    settings = load(["--history_ttl", "10s", "--dedup_ttl", "20s", "--sessions_ttl", "30s"], {})
    assert horizon(settings) == 30 + 2 * FORMER_RENEWAL
    assert horizon(replace(settings, streams=(StreamRule("a", history_ttl=4000.0), StreamRule("b")))) == 4000
    assert horizon(load(["--dedup_ttl", "5000s"], {})) == 5000


def test_journal_token_is_derived_unless_set(subtests: pytest.Subtests) -> None:
    cases: list[tuple[list[str], str | None]] = [
        (["--secret", "s"], derive("s", "journal-cable")),
        (["--secret", "s", "--journal_token", "t"], "t"),
        (["--noauth"], None),
        (["--public"], ""),
    ]
    for flags, key in cases:
        with subtests.test(flags=flags):
            assert derive_keys(load(flags, {})).journal == key


def test_invalid_number_of_shards_is_rejected(subtests: pytest.Subtests) -> None:
    for shards in ["0", "257"]:
        with subtests.test(shards=shards), pytest.raises(UserMistake, match="journal_shards"):
            require_startable(load(["--public", "--journal_shards", shards], {}))
