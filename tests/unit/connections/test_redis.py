"""Where Redis is: several servers in one URL, and others of the same cluster."""

import pytest

from ropewalk.connections.redis import RedisAddress


def test_an_address_may_name_several_servers() -> None:
    address = RedisAddress("redis://a:1, redis://b:2", tls_ca="file")

    assert address.each() == [RedisAddress("redis://a:1", tls_ca="file"), RedisAddress("redis://b:2", tls_ca="file")]


@pytest.mark.parametrize(
    ("url", "host", "there"),
    [
        ("redis://a:1", "b", "redis://b:2"),
        ("rediss://user:p%40ss@a:1/0", "b", "rediss://user:p%40ss@b:2/0"),
        ("redis://:pw@a", "::1", "redis://:pw@[::1]:2"),
    ],
)
def test_another_server_of_a_cluster_has_the_same_credentials(url: str, host: str, there: str) -> None:
    assert RedisAddress(url, tls_verify=False).at(host, 2) == RedisAddress(there, tls_verify=False)
