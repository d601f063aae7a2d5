"""The Redis backend over a Redis Cluster of three masters, through the suite of backends that several nodes share."""

from collections.abc import Iterator

import pytest

from ropewalk.connections.redis import RedisAddress
from tests.conformance.test_redis_backend import RedisRig
from tests.services import RedisServer, redis_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[list[RedisServer]]:
    with redis_cluster() as servers:
        yield servers


class TestRedisCluster(RedisRig):
    @pytest.fixture(autouse=True)
    def _server(self, cluster: list[RedisServer]) -> None:
        self.address = RedisAddress(",".join(server.url for server in cluster))
