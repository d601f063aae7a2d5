"""Implements `ports.MemberLeases` on JetStream, which lets leases go that are not renewed.

Invariant: everything is read from the leader, and after a write: servers that are cut off from the others cannot answer both.
"""

import asyncio
from contextlib import suppress

import msgspec

from ropewalk.adapters.backends.nats import jets
from ropewalk.adapters.backends.nats.link import ApiError, NatsLink
from ropewalk.adapters.backends.nats.names import token
from ropewalk.connections.nats import NatsAddress
from ropewalk.model.errors import Unavailable
from ropewalk.model.ring import MemberLease, RingRecord, SeenLeases

KEPT_PER_SUBJECT = 1


class NatsMemberLeases:
    """`prefix` begins the names of the subjects and of the JetStream stream, as with the backend."""

    store = "NATS"

    def __init__(self, address: NatsAddress, replicas: int = 1, prefix: str = "rw") -> None:
        self._link = NatsLink(address, "ropewalk ring")
        self._jet = f"{prefix.upper()}_RING"
        self._leases = f"{prefix}.ring.lease"
        self._record = f"{prefix}.ring.record"
        self._config = jets.config(self._jet, [f"{prefix}.ring.>"], replicas, KEPT_PER_SUBJECT)
        self._opening: asyncio.Task[None] | None = None
        self._made = False
        self.place = f"the message {self._record} of the stream {self._jet} in NATS"

    async def start(self) -> None:
        self._opening = asyncio.get_running_loop().create_task(self._link.open())

    async def stop(self) -> None:
        if self._opening is not None:
            self._opening.cancel()
            with suppress(asyncio.CancelledError):
                await self._opening
        await self._link.close()

    async def renew(self, lease: MemberLease, lasting: float) -> SeenLeases:
        try:
            if not self._made:
                await jets.ensure(self._link, self._config)
                self._made = True
            subject = f"{self._leases}.{token(lease.run)}"
            await self._link.publish(subject, msgspec.json.encode(lease), {"Nats-TTL": f"{lasting:.0f}"})
            return await self._see()
        except ApiError as error:
            self._made = False
            raise Unavailable(f"JetStream refuses: {error}") from None
        except msgspec.DecodeError as error:
            raise Unavailable(f"what NATS has of the ring cannot be read: {error}") from None
        except Unavailable:
            self._made = False  # the stream may be gone, and with it whoever answers
            raise

    async def _see(self) -> SeenLeases:
        leases, sequence = [], 1
        while (stored := await self._link.following(self._jet, sequence, f"{self._leases}.*")) is not None:
            leases.append(msgspec.json.decode(stored.data, type=MemberLease))
            sequence = stored.seq + 1
        leases.sort(key=lambda lease: lease.run)
        kept = await self._link.last(self._jet, self._record)
        if kept is None:
            return SeenLeases(tuple(leases))
        return SeenLeases(tuple(leases), msgspec.json.decode(kept.data, type=RingRecord), str(kept.seq))

    async def replace_record(self, seen: SeenLeases, record: RingRecord) -> bool:
        write = jets.JetWrite(self._record, msgspec.json.encode(record), expected=int(seen.revision or 0))
        try:
            await jets.store(self._link, [write])
        except jets.WriteConflict:
            return False
        return True
