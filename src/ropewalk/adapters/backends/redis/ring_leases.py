"""Implements `ports.ring.MemberLeases` on Redis. The clock of the server is that of all leases."""

from hashlib import sha1
from typing import Any

import msgspec
from redis import exceptions

from ropewalk.adapters.backends.redis.links import RedisLink, RedisLinks
from ropewalk.adapters.backends.redis.scripts import script
from ropewalk.adapters.backends.redis.topology import Topology
from ropewalk.connections.redis import RedisAddress
from ropewalk.model.errors import Unavailable
from ropewalk.model.ring import MemberLease, RingRecord, SeenLeases

TAG = "ring"


class RedisMemberLeases:
    """`prefix`: how all keys begin; by default as those of the backend do."""

    store = "Redis"

    def __init__(self, address: RedisAddress, prefix: str = "") -> None:
        self._topology = Topology(address)
        prefix = prefix or f"rw{self._topology.database or ''}:"
        base = f"{prefix}{{{TAG}}}:"
        self._configuration = f"{base}conf"
        self._keys = (f"{base}leases", f"{base}ends", f"{base}record")
        self.place = f"the key {base}record in Redis"
        self._links: RedisLinks | None = None

    async def start(self) -> None:
        """Redis is asked when there is something to ask."""

    async def stop(self) -> None:
        if self._links is not None:
            await self._links.close()
        await self._topology.close()

    async def renew(self, lease: MemberLease, lasting: float) -> SeenLeases:
        leases, record = await self._run("ring_renew", self._keys, lease.run, msgspec.json.encode(lease), round(lasting * 1000))
        try:
            return SeenLeases(
                tuple(sorted((msgspec.json.decode(each, type=MemberLease) for each in leases), key=lambda each: each.run)),
                None if record is None else msgspec.json.decode(record, type=RingRecord),
                "" if record is None else sha1(record, usedforsecurity=False).hexdigest(),
            )
        except msgspec.DecodeError as error:
            raise Unavailable(f"what Redis has of the ring cannot be read: {error}") from None

    async def replace_record(self, seen: SeenLeases, record: RingRecord) -> bool:
        return bool(await self._run("ring_record", self._keys[2:], seen.revision, msgspec.json.encode(record)))

    async def _run(self, name: str, keys: tuple[str, ...], *arguments: str | bytes | int) -> Any:
        async def call(link: RedisLink) -> Any:
            try:
                return await link.ask("EVAL", script(name).text, len(keys), *keys, *arguments)
            except exceptions.RedisError as error:
                await link.close()  # the master may be another server now
                raise Unavailable(f"Redis refuses: {error}") from None

        return await (await self._reached()).ask(call)

    async def _reached(self) -> RedisLinks:
        if self._links is None:
            link = await self._topology.discover(self._configuration)
            await link.close()
            self._links = RedisLinks(self._topology.connect(TAG))
        return self._links
