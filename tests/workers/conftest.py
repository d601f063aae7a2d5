"""Flags of servers with two workers, for each place where streams and sessions can be kept."""

from collections.abc import Iterator

import pytest

from tests.services import RedisServer, redis_server


@pytest.fixture(scope="module")
def redis() -> Iterator[RedisServer]:
    with redis_server() as server:
        yield server


@pytest.fixture(scope="module", params=["memory", "redis"])
def engine(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """The store process keeps everything, or Redis does."""
    chosen: tuple[str, ...] = ("--broker", request.param)
    if request.param == "redis":
        redis: RedisServer = request.getfixturevalue("redis")
        chosen += ("--redis_url", redis.url)
    return ("--public", "--workers", "2", *chosen)
