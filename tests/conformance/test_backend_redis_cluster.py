"""The Redis backend on a Redis Cluster of three masters: the cases whose keys lie in several slots.

Every script of the backend runs on one slot, so a case with one stream, session or member does not differ from one server.
"""

from collections.abc import Iterator

import pytest

from ropewalk.connections.redis import RedisAddress
from tests.conformance.selection import QUEUED, SHARDED, SHARED, only
from tests.conformance.test_backend_redis import RedisSuite
from tests.services import RedisServer, redis_cluster

pytestmark = pytest.mark.tier("all")


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as servers:
        yield servers


@only(*SHARDED, *SHARED, *QUEUED)
class TestRedisCluster(RedisSuite):
    @pytest.fixture(autouse=True)
    def _server(self, cluster: list[RedisServer]) -> None:
        self.address = RedisAddress(",".join(server.url for server in cluster))
