"""Connections to Redis: one server, or the master that Sentinels name.

The client's own retries are off: it repeats a command after a timeout, which could run a write twice.
"""

import ssl
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import unquote, urlsplit, urlunsplit

from redis.asyncio import Redis
from redis.asyncio.connection import AbstractConnection
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff

from ropewalk.model.errors import UserMistake

CONNECT_SECONDS = 2.0
SENTINEL_PORT = 26379
CLOSED = RuntimeError
"""Raised by uvloop, through the client, for a write to a connection that was just closed."""

CHECK_SECONDS = 5
"""A connection that was idle for longer is checked before it is used."""


@dataclass(frozen=True)
class RedisAddress:
    """Servers of Redis. With `sentinels` the host of the URL is the name of the master."""

    url: str
    sentinels: tuple[str, ...] = ()
    tls_verify: bool = True
    tls_ca: str = ""
    tls_certificate: str = ""
    tls_key: str = ""

    def each(self) -> list["RedisAddress"]:
        """An address for each server in the URL: the nodes of a Redis Cluster are separated by commas."""
        return [replace(self, url=url.strip()) for url in self.url.split(",")]

    def at(self, host: str, port: int) -> "RedisAddress":
        """Another server of the same cluster, with the same credentials."""
        url = urlsplit(self.url)
        login, given, _ = url.netloc.rpartition("@")
        place = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        return replace(self, url=urlunsplit(url._replace(netloc=login + given + place)))


def open_redis(address: RedisAddress, timeout: float, **options: Any) -> Redis:
    """Returns a client with a pool of its own, which connects at the first use. `timeout`: seconds for one reply.

    Raises UserMistake for an invalid URL.
    """
    given = {
        "socket_timeout": timeout,
        "socket_connect_timeout": CONNECT_SECONDS,
        "health_check_interval": CHECK_SECONDS,
        "retry": Retry(NoBackoff(), 0),
        **options,
    }
    try:
        if address.sentinels:
            return _master(address, given)
        return Redis.from_url(address.url, **given, **_tls(address))
    except ValueError as error:
        raise UserMistake(f"--redis_url cannot be used: {error}") from None


def _master(address: RedisAddress, options: dict[str, Any]) -> Redis:
    url = urlsplit(address.url)
    if not url.hostname:
        raise ValueError("with --redis_sentinels its host is the name of the master, as in redis://mymaster")
    login = {"username": _unquote(url.username), "password": _unquote(url.password), "db": int(url.path.strip("/") or 0)}
    tls = {"ssl": True, **_tls(address)} if url.scheme == "rediss" else {}
    hosts, sentinel_options = [], dict(options)
    for place in address.sentinels:
        at = urlsplit(place if "://" in place else f"//{place}")
        hosts.append((at.hostname or "localhost", at.port or SENTINEL_PORT))
        if at.password:
            sentinel_options.update(username=_unquote(at.username), password=_unquote(at.password))
    sentinel = Sentinel(hosts, sentinel_kwargs=sentinel_options, **login, **tls, **options)  # type: ignore[no-untyped-call]
    master: Redis = sentinel.master_for(url.hostname)
    return master


def _unquote(word: str | None) -> str | None:
    return unquote(word) if word else None


def _tls(address: RedisAddress) -> dict[str, Any]:
    if not address.url.startswith("rediss://"):
        return {}
    return {
        "ssl_cert_reqs": ssl.CERT_REQUIRED if address.tls_verify else ssl.CERT_NONE,
        "ssl_check_hostname": address.tls_verify,
        "ssl_ca_certs": address.tls_ca or None,
        "ssl_certfile": address.tls_certificate or None,
        "ssl_keyfile": address.tls_key or None,
    }


async def close_redis(client: Redis) -> None:
    """Close a client, and its connections to Sentinels."""
    manager: Sentinel | None = getattr(client.connection_pool, "sentinel_manager", None)
    for sentinel in () if manager is None else manager.sentinels:
        await sentinel.aclose()
    await client.aclose()


async def connection_to(client: Redis, host: str = "", port: int = 0) -> AbstractConnection:
    """A connection outside the client's pool: to the client's server, or to another one with the same credentials."""
    pool = client.connection_pool
    if host:
        connection: AbstractConnection = pool.connection_class(**{**pool.connection_kwargs, "host": host, "port": port})
    else:
        connection = pool.make_connection()  # type: ignore[no-untyped-call]
    await connection.connect()  # type: ignore[no-untyped-call]
    return connection
