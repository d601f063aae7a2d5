"""A Redis server for each test of failures."""

from collections.abc import Iterator

import pytest

from tests.cluster.redis_nodes import AOF
from tests.services import RedisServer, redis_server


@pytest.fixture
def redis() -> Iterator[RedisServer]:
    with redis_server(*AOF) as server:
        yield server
