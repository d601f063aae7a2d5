"""The Redis backend over a real server, through the suite every backend must pass that several nodes share."""

from collections.abc import Iterator
from itertools import count

import pytest

from ropewalk.adapters.backends.redis import RedisBackend
from ropewalk.connections.redis import RedisAddress
from ropewalk.core.rules import Rulebook
from ropewalk.ports import Backend
from ropewalk.testing.backend import SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault
from tests.services import RedisServer, redis_server

_numbers = count()


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server("--appendonly", "no") as server:
        yield server


class TestRedisBackend(SharedBackendConformance):
    @pytest.fixture(autouse=True)
    def _server(self, redis: RedisServer) -> None:
        self.address = RedisAddress(redis.url)

    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        prefix = f"rw{next(_numbers)}:"  # every test has a store of its own on the one server
        first, second = (
            RedisBackend(
                Rulebook(setup.default, setup.rules),
                self.address,
                node,
                dedup_ttl=setup.dedup_ttl,
                dedup_limit=setup.dedup_limit,
                presence_ttl=setup.presence_ttl,
                max_members=setup.max_members,
                prefix=prefix,
                clock=setup.clock,
            )
            for node in ("one", "two")
        )
        return first, second

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        raise NotImplementedError
