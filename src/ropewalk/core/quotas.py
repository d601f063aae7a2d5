"""Rate limits, and limits per user and per address: the number of connections, and the rate at which an address connects.

Invariant: each counted connection is subtracted once. Loopback addresses and Unix sockets have no limit: they are proxies or
tests on this machine. IPv6 addresses count by their /64, the block of one customer.

The processes of a node exchange the counts of users and addresses with many connections about once a second. Connections that
several processes accept within that second may exceed a limit, as may counts that are too low in each process to be exchanged.
"""

from collections.abc import Mapping
from hashlib import blake2b
from heapq import nlargest
from ipaddress import AddressValueError, IPv6Address
from sys import intern

from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal


class TokenBucket:
    """Allows `rate` per second in the long run, and `burst` at once. Starts full."""

    __slots__ = ("_at", "_burst", "_rate", "_tokens")

    def __init__(self, rate: float, burst: float) -> None:
        self._rate = rate
        self._burst = burst
        self._tokens = burst
        self._at = 0.0

    def spend(self, tokens: float) -> None:
        """Take tokens in advance: nothing is allowed until they are refilled."""
        self._tokens -= tokens

    def is_full(self, now: float) -> bool:
        return self._tokens + (now - self._at) * self._rate >= self._burst

    def allow(self, now: float, tokens: float = 1) -> bool:
        """Take so many tokens if there are as many. A clock that steps back refills none."""
        if now > self._at:
            self._tokens = min(self._burst, self._tokens + (now - self._at) * self._rate)
        self._at = now
        if self._tokens < tokens:
            return False
        self._tokens -= tokens
        return True


BURST_SECONDS = 10
"""The burst of an address, as seconds of its rate: all its clients reconnect after a restart."""

MAX_REPORTED = 2048
"""Maximum number of users, and of addresses, that a process reports to others."""

REPORTED_SHARE = 64
"""A process reports keys with at least 1/64 of the limit, and more than one connection."""

MAX_BUCKETS = 65_536
"""Addresses with a tracked rate. The oldest is dropped for a new one."""

MAX_SWEPT_ADDRESSES = 1000

ANONYMOUS_IDS = ("", "{}")
"""Connection identifiers without a user."""


class Tally:
    """Counts the connections of each key. `limit` 0 means no limit. `elsewhere`: counts of other processes, by digest of the
    key."""

    def __init__(self, kind: str, limit: int) -> None:
        self._kind = kind
        self._taken: dict[str, int] = {}
        self.elsewhere: Mapping[str, int] = {}
        self.limit = limit

    @property
    def limit(self) -> int:
        return self._limit

    @limit.setter
    def limit(self, limit: int) -> None:
        self._limit = limit
        self._least = max(2, limit // REPORTED_SHARE)
        self._many = {key for key, taken in self._taken.items() if taken >= self._least}

    def take(self, key: str) -> bool:
        taken = self._taken.get(key, 0)
        if self._limit:
            others = self.elsewhere.get(self._digest(key), 0) if self.elsewhere else 0
            if taken + others >= self._limit:
                return False
        self._taken[key] = taken + 1
        if taken + 1 >= self._least:
            self._many.add(key)
        return True

    def give_back(self, key: str) -> None:
        if (left := self._taken[key] - 1) > 0:
            self._taken[key] = left
        else:
            del self._taken[key]
        if left < self._least:
            self._many.discard(key)

    def crowds(self) -> dict[str, int]:
        """Counts of keys with many connections, by digest."""
        if not self._limit:
            return {}
        many = self._many if len(self._many) <= MAX_REPORTED else nlargest(MAX_REPORTED, self._many, self._taken.__getitem__)
        return {self._digest(key): self._taken[key] for key in many}

    def _digest(self, key: str) -> str:
        return self._kind + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


class ConnectionQuotas:
    """Call `enter` with an address, then `identify` with the connection's identifiers; later `leave` with their results."""

    def __init__(self, limits: Limits) -> None:
        self._users = Tally("u", limits.max_conn_per_user)
        self._addresses = Tally("a", limits.max_conn_per_address)
        self._rate = limits.conn_rate_per_address
        self._buckets: dict[str, TokenBucket] = {}

    def limit(self, per_user: int, per_address: int, rate: float) -> None:
        """Change the limits."""
        self._users.limit, self._addresses.limit = per_user, per_address
        if rate != self._rate:
            self._rate = rate
            self._buckets.clear()

    def enter(self, remote: str, now: float) -> str | Refusal:
        """Returns the address that the connection counts for, "" for none; or the reason of the refusal."""
        address = intern(quota_address(remote))  # one string for all its connections
        if not address:
            return ""
        if self._rate and not self._bucket(address).allow(now):
            return Refusal.ADDRESS_RATE
        return address if self._addresses.take(address) else Refusal.ADDRESS_CONNECTIONS

    def identify(self, ids: str) -> str | Refusal:
        """Returns the user that the connection counts for, "" for none; or the reason of the refusal."""
        if ids in ANONYMOUS_IDS:
            return ""
        return ids if self._users.take(ids) else Refusal.USER_CONNECTIONS

    def leave(self, address: str, user: str) -> None:
        if address:
            self._addresses.give_back(address)
        if user:
            self._users.give_back(user)

    def _bucket(self, address: str) -> TokenBucket:
        bucket = self._buckets.get(address)
        if bucket is None:
            if len(self._buckets) >= MAX_BUCKETS:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[address] = TokenBucket(self._rate, max(1.0, self._rate * BURST_SECONDS))
        return bucket

    def sweep(self, now: float) -> None:
        """Drop addresses with full buckets. Called about once a second."""
        for _ in range(min(MAX_SWEPT_ADDRESSES, len(self._buckets))):
            address = next(iter(self._buckets))
            bucket = self._buckets.pop(address)
            if not bucket.is_full(now):
                self._buckets[address] = bucket

    # --- several processes --------------------------------------------------------------------------------------------

    def crowds(self) -> dict[str, int]:
        return {**self._users.crowds(), **self._addresses.crowds()}

    def set_elsewhere(self, crowds: Mapping[str, int]) -> None:
        """Set the counts of other processes, as returned by their `crowds`."""
        self._users.elsewhere = self._addresses.elsewhere = crowds


def quota_address(remote: str) -> str:
    """ "" for an address without a limit."""
    if ":" not in remote:
        return "" if remote.startswith("127.") else remote
    try:
        address = IPv6Address(remote.partition("%")[0])
    except AddressValueError:
        return remote
    if address.ipv4_mapped is not None:
        return quota_address(str(address.ipv4_mapped))
    return "" if address.is_loopback else address.exploded[:19]
