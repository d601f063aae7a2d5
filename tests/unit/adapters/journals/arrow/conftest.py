import asyncio
from pathlib import Path

import pytest

from tests.unit.adapters.journals.arrow.damaged_journal import KilledJournal, write_killed_journal


@pytest.fixture(scope="session")
def killed_journal(tmp_path_factory: pytest.TempPathFactory) -> KilledJournal:
    """Written once. Tests damage copies of it."""
    return asyncio.run(write_killed_journal(tmp_path_factory.mktemp("killed_journal")))


@pytest.fixture
def damaged(killed_journal: KilledJournal, tmp_path: Path) -> KilledJournal:
    """A copy to damage."""
    return killed_journal.copy(tmp_path / "copy")
