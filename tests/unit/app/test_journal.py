"""The journal's settings: what they make, how far back they look, and what is said where its library is missing."""

import re
import sys
from dataclasses import replace

import pytest

from ropewalk.adapters.journals.none import NoJournal
from ropewalk.app.journal import FORMER_RENEWAL, horizon, journal_of
from ropewalk.app.keys import keys_of
from ropewalk.app.settings import Settings, load, require_startable
from ropewalk.core.signatures import derive
from ropewalk.model.errors import UserMistake
from ropewalk.model.extras import install
from ropewalk.model.rules import StreamRule


def test_without_a_directory_there_is_no_journal() -> None:
    assert isinstance(journal_of(Settings()), NoJournal)


def test_a_missing_library_is_named_with_the_extra_that_brings_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("pyarrow", "ropewalk.adapters.journals.arrow"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserMistake, match=re.escape(f"journal needs pyarrow, which is not installed: {install('journal')}")):
        journal_of(load(["--public", "--data_dir", "somewhere"], {}))


def test_recovery_looks_back_as_far_as_the_longest_horizon() -> None:
    settings = load(["--history_ttl", "10s", "--dedup_ttl", "20s", "--sessions_ttl", "30s"], {})
    assert horizon(settings) == 30 + 2 * FORMER_RENEWAL
    assert horizon(replace(settings, streams=(StreamRule("a", history_ttl=4000.0), StreamRule("b")))) == 4000
    assert horizon(load(["--dedup_ttl", "5000s"], {})) == 5000


@pytest.mark.parametrize(
    ("flags", "key"),
    [
        (["--secret", "s"], derive("s", "journal-cable")),
        (["--secret", "s", "--journal_token", "t"], "t"),
        (["--noauth"], None),
        (["--public"], ""),
    ],
)
def test_the_journal_has_a_token_of_its_own(flags: list[str], key: str | None) -> None:
    assert keys_of(load(flags, {})).journal == key


@pytest.mark.parametrize("shards", ["0", "257"])
def test_a_number_of_shards_that_cannot_be_is_refused(shards: str) -> None:
    with pytest.raises(UserMistake, match="journal_shards"):
        require_startable(load(["--public", "--journal_shards", shards], {}))
