"""The archive: everything the journal ever held, as one Delta table, sorted so that a stream's range is found by statistics.

Invariant: only what the Delta log names exists; a file without a commit is garbage.
"""

from ropewalk.pipeline.archive.compact import Compaction, compact
from ropewalk.pipeline.archive.reporting import archived_positions
from ropewalk.pipeline.archive.vacuum import vacuum

__all__ = ["Compaction", "archived_positions", "compact", "vacuum"]
