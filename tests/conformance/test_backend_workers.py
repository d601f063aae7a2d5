"""The backend of workers over a real bus to a store in this process: the complete suite of shared backends."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from ropewalk.adapters.backends.memory.store import StoreOptions
from ropewalk.adapters.backends.workers.backend import WorkerBackend
from ropewalk.adapters.backends.workers.server import StoreServer
from ropewalk.adapters.backends.workers.store import SharedStore
from ropewalk.core.rules import Rulebook
from ropewalk.model.errors import Unanswered, Unavailable
from ropewalk.ports import Backend
from ropewalk.testing.backend import SharedBackendConformance
from ropewalk.testing.backend_rig import BackendSetup, StoreFault

POLL_SECONDS = 0.005


class StoreProcess:
    """The store and its end of the bus. The first backend starts it and the last one stops it."""

    def __init__(self, setup: BackendSetup) -> None:
        self.directory = tempfile.TemporaryDirectory(prefix="ropewalk-bus-")
        self.path = str(Path(self.directory.name, "bus.sock"))
        self.server = StoreServer()
        rules = Rulebook(setup.default, setup.rules)
        self.store = SharedStore(rules, setup.clock, self.server, StoreOptions(setup.limits))
        self.server.attach(self.store)
        self.users = 0

    async def begin(self) -> None:
        self.users += 1
        if self.users == 1:
            await self.server.start(self.path)

    async def end(self) -> None:
        self.users -= 1
        if self.users == 0:
            await self.server.stop()
            self.directory.cleanup()


class DisturbedBackend(WorkerBackend):
    def __init__(self, process: StoreProcess, name: str) -> None:
        super().__init__(process.path, name)
        self._process = process
        self.fault = StoreFault.NONE
        call = self.link.call

        async def disturbed(method: str, *arguments: object) -> Any:
            if self.fault is StoreFault.UNAVAILABLE:
                raise Unavailable("disturbed")
            while self.fault is StoreFault.SLOW:
                await asyncio.sleep(POLL_SECONDS)
            answer = await call(method, *arguments)
            if self.fault is StoreFault.UNANSWERED:
                raise Unanswered("disturbed")
            return answer

        self.link.call = disturbed  # type: ignore[method-assign]

    async def start(self) -> None:
        await self._process.begin()
        await super().start()

    async def stop(self) -> None:
        await super().stop()
        await self._process.end()

    async def sweep(self) -> None:
        await self._process.store.sweep()

    def gauges(self) -> dict[str, float]:
        return self._process.store.gauges()


class TestWorkersBackend(SharedBackendConformance):
    def make_two(self, setup: BackendSetup) -> tuple[Backend, Backend]:
        process = StoreProcess(setup)
        return DisturbedBackend(process, "one"), DisturbedBackend(process, "two")

    def disturb(self, backend: Backend, fault: StoreFault) -> None:
        assert isinstance(backend, DisturbedBackend)
        backend.fault = fault
