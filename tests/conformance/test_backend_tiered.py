"""The backend with tiered history over an empty archive: the cases of streams. The other ports are those of the hot backend.

Answers joined from archived and hot messages are tested in tests/unit/engine/test_tiered.py.
"""

from pathlib import Path

import pytest

from ropewalk.adapters.archives.delta import DeltaArchive
from ropewalk.engine.tiered import TieredBackend
from ropewalk.ports import Backend
from ropewalk.testing.backend import UpkeepConformance
from ropewalk.testing.backend_feed import FeedConformance
from ropewalk.testing.backend_rig import BackendSetup
from ropewalk.testing.backend_streams import StreamConformance
from tests.conformance.test_backend_memory import memory_backend


class TestTieredBackend(StreamConformance, UpkeepConformance):
    test_message_arrives_with_its_position_and_fields = FeedConformance.test_message_arrives_with_its_position_and_fields

    @pytest.fixture(autouse=True)
    def _home(self, tmp_path: Path) -> None:
        self.home = tmp_path

    def make(self, setup: BackendSetup) -> Backend:
        archive = DeltaArchive(str(self.home / "archive"), 4, setup.clock, refresh=2.0)
        return TieredBackend(memory_backend(setup), archive, 1000)
