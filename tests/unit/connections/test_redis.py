"""Addresses of Redis: several servers in one URL, and other servers of a cluster."""

import pytest

from ropewalk.connections.redis import RedisAddress


def test_address_can_list_several_servers() -> None:
    address = RedisAddress("redis://a:1, redis://b:2", tls_ca="file")

    assert address.each() == [RedisAddress("redis://a:1", tls_ca="file"), RedisAddress("redis://b:2", tls_ca="file")]


def test_other_server_of_a_cluster_has_the_same_credentials(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str, str]] = [
        ("redis://a:1", "b", "redis://b:2"),
        ("rediss://user:p%40ss@a:1/0", "b", "rediss://user:p%40ss@b:2/0"),
        ("redis://:pw@a", "::1", "redis://:pw@[::1]:2"),
    ]
    for url, host, expected in cases:
        with subtests.test(url=url):
            assert RedisAddress(url, tls_verify=False).at(host, 2) == RedisAddress(expected, tls_verify=False)
