"""Limits for each user and each address: how many connections they have, and how fast an address connects.

Invariant: a place that was taken is given back once. Loopback addresses and Unix sockets have no limit: what comes from there
is a proxy or a test on this machine. IPv6 addresses count by their /64, which is what one customer gets.

Where a node has several processes, they tell each other whose connections are many, about once a second. What all of them
accept within that second may go beyond a limit, and so may what is too little in each of them to be told.
"""

from collections.abc import Mapping
from hashlib import blake2b
from heapq import nlargest
from ipaddress import AddressValueError, IPv6Address
from sys import intern

from ropewalk.core.rate import TokenBucket
from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal

BURST_SECONDS = 10
"""An address may make as many connections at once as it may in so many seconds: everybody comes back after a restart."""

MAX_REPORTED = 2048
"""Users and as many addresses that a process tells others about."""

REPORTED_SHARE = 64
"""A process tells others about those that have at least this part of the limit, and more than one connection."""

MAX_BUCKETS = 65_536
"""Addresses whose rate is known. The one that was seen first is forgotten for a new one."""

SWEPT_AT_ONCE = 1000

NOBODY = ("", "{}")
"""Connection identifiers that identify no user."""


class Tally:
    """Counts the connections of each key. `limit` 0 sets none. `elsewhere`: those of other processes, by digest of the key."""

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
        """Those with many connections, by digest."""
        if not self._limit:
            return {}
        many = self._many if len(self._many) <= MAX_REPORTED else nlargest(MAX_REPORTED, self._many, self._taken.__getitem__)
        return {self._digest(key): self._taken[key] for key in many}

    def _digest(self, key: str) -> str:
        return self._kind + blake2b(key.encode("utf-8", "surrogatepass"), digest_size=9).hexdigest()


class ConnectionQuotas:
    """`enter` with an address, then `identify` with the connection's identifiers; `leave` with what was granted."""

    def __init__(self, limits: Limits) -> None:
        self._users = Tally("u", limits.max_conn_per_user)
        self._addresses = Tally("a", limits.max_conn_per_address)
        self._rate = limits.conn_rate_per_address
        self._buckets: dict[str, TokenBucket] = {}

    def limit(self, per_user: int, per_address: int, rate: float) -> None:
        """Other limits from now on."""
        self._users.limit, self._addresses.limit = per_user, per_address
        if rate != self._rate:
            self._rate = rate
            self._buckets.clear()

    def enter(self, remote: str, now: float) -> str | Refusal:
        """The address that the connection counts for, "" for none; or why it is refused."""
        address = intern(counted_address(remote))  # one text for all connections from there
        if not address:
            return ""
        if self._rate and not self._bucket(address).allow(now):
            return Refusal.ADDRESS_RATE
        return address if self._addresses.take(address) else Refusal.ADDRESS_CONNECTIONS

    def identify(self, ids: str) -> str | Refusal:
        """The user that the connection counts for, "" for none; or why it is refused."""
        if ids in NOBODY:
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
        """Forget addresses that may connect as fast as new ones. Called about once a second."""
        for _ in range(min(SWEPT_AT_ONCE, len(self._buckets))):
            address = next(iter(self._buckets))
            bucket = self._buckets.pop(address)
            if not bucket.is_full(now):
                self._buckets[address] = bucket

    # --- several processes --------------------------------------------------------------------------------------------

    def crowds(self) -> dict[str, int]:
        return {**self._users.crowds(), **self._addresses.crowds()}

    def taken_elsewhere(self, crowds: Mapping[str, int]) -> None:
        """So many connections of these are in other processes, which have told it by `crowds`."""
        self._users.elsewhere = self._addresses.elsewhere = crowds


def counted_address(remote: str) -> str:
    """ "" for what is not limited."""
    if ":" not in remote:
        return "" if remote.startswith("127.") else remote
    try:
        address = IPv6Address(remote.partition("%")[0])
    except AddressValueError:
        return remote
    if address.ipv4_mapped is not None:
        return counted_address(str(address.ipv4_mapped))
    return "" if address.is_loopback else address.exploded[:19]
