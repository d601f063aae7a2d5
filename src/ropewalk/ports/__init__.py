"""The ports: Protocol classes for what the engine needs from adapters, and for what it offers to them.

Their docstrings state what types cannot: atomicity, order, idempotence, and errors. The ports that adapters implement have a
conformance suite in `ropewalk.testing`: `Backend` with its stores, leases, record queue and feed, `Journal`, `JournalReader`
and `ConsumerStore`, `Staging`, `RowReader` and `Rows`, `Archive`, `Authenticator`, `Channels`, `Application`. Three have none:
`Connection` and `Broadcaster`, which are tested against real clients and servers, and `Ring`, which is tested with complete
rings. The engine implements `Transactor`, `Publisher`, `RunPublisher`, `SessionHandle` and `Inspector`.
"""

from ropewalk.ports.backend import (
    Backend,
    Clock,
    Deliver,
    DerivedPartitions,
    Feed,
    Leases,
    NodeName,
    OnDisconnectRequest,
    OnMissed,
    PrefixFeed,
    PresenceStore,
    RecordQueue,
    Ring,
    SessionStore,
    StreamStore,
    ignore_missed,
)
from ropewalk.ports.endpoints import (
    Application,
    Authenticator,
    Broadcaster,
    Channels,
    Connection,
    DirectWrites,
    Inspector,
    Publisher,
    RunPublisher,
    SessionHandle,
)
from ropewalk.ports.journal import Archive, ConsumerStore, Journal, JournalReader, RowReader, Rows, Staging, Transactor

__all__ = [
    "Application",
    "Archive",
    "Authenticator",
    "Backend",
    "Broadcaster",
    "Channels",
    "Clock",
    "Connection",
    "ConsumerStore",
    "Deliver",
    "DerivedPartitions",
    "DirectWrites",
    "Feed",
    "Inspector",
    "Journal",
    "JournalReader",
    "Leases",
    "NodeName",
    "OnDisconnectRequest",
    "OnMissed",
    "PrefixFeed",
    "PresenceStore",
    "Publisher",
    "RecordQueue",
    "Ring",
    "RowReader",
    "Rows",
    "RunPublisher",
    "SessionHandle",
    "SessionStore",
    "Staging",
    "StreamStore",
    "Transactor",
    "ignore_missed",
]
