"""The NATS backend on a cluster of three servers with three replicas: the cases in which a node reads the writes of another.

A replica may be behind the one that acknowledged a write, and each shard may have its leader on another server. A case with
one writer that reads its own responses does not differ from one server. Failover is in test_backend_nats_failures.py.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.nats_nodes import ready_cluster
from tests.conformance.selection import QUEUED, SHARDED, SHARED, only
from tests.conformance.test_backend_nats import NatsSuite

pytestmark = pytest.mark.tier("all")


@pytest.fixture(scope="module")
def servers() -> Iterator[tuple[str, ...]]:
    with ready_cluster() as servers:
        yield tuple(server.url for server in servers)


@only(*SHARDED, *SHARED, *QUEUED, "replay_returns_the_messages_after_a_position", "tip_outlives_the_history")
class TestNatsCluster(NatsSuite):
    replicas = 3

    @pytest.fixture(autouse=True)
    def at(self, servers: tuple[str, ...]) -> None:
        self.servers = servers
