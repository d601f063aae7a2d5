"""Conformance suites for `ports.Backend`.

Invariant: the suites use the port only, so a backend that passes can replace any other.
"""

from ropewalk.testing.backend_feed import FeedConformance
from ropewalk.testing.backend_leases import LeaseConformance
from ropewalk.testing.backend_presence import PresenceConformance
from ropewalk.testing.backend_producers import ProducerConformance
from ropewalk.testing.backend_queue import RecordQueueConformance
from ropewalk.testing.backend_sessions import SessionConformance
from ropewalk.testing.backend_streams import StreamConformance
from ropewalk.testing.backend_upkeep import UpkeepConformance

__all__ = ["BackendConformance", "RecordQueueConformance", "SharedBackendConformance"]


class BackendConformance(
    StreamConformance, ProducerConformance, SessionConformance, PresenceConformance, FeedConformance, UpkeepConformance
):
    """Inherit it as `TestMyBackend` and fill `make`; where time cannot be set, fill `advance` too. See `backend_rig`."""


class SharedBackendConformance(LeaseConformance, BackendConformance):
    """For a backend whose store several nodes share: the same cases on two instances that alternate, and the cases about two
    nodes (leases, takeover, faults). Fill `make_two` and `disturb`."""
