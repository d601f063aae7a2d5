"""A backend with tiered history over an archive that has nothing yet, through the suite every backend must pass."""

from pathlib import Path

import pytest

from ropewalk.adapters.archives import DeltaArchive
from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.core.rules import Rulebook
from ropewalk.engine.tiered import TieredBackend
from ropewalk.ports import Backend
from ropewalk.testing.backend import BackendConformance
from ropewalk.testing.backend_rig import BackendSetup


class TestTieredBackend(BackendConformance):
    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path) -> None:
        self.home = tmp_path

    def make(self, setup: BackendSetup) -> Backend:
        rules = Rulebook(setup.default, setup.rules)
        hot = MemoryBackend(
            rules,
            setup.clock,
            dedup_ttl=setup.dedup_ttl,
            dedup_limit=setup.dedup_limit,
            max_members=setup.max_members,
        )
        archive = DeltaArchive(str(self.home / "archive"), 4, setup.clock, refresh=2.0)
        return TieredBackend(hot, archive, 1000)
