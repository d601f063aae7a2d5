"""The pubsub of a single process: a call. Its absence of a network is this object, not an `if` in the engine."""

from collections.abc import Awaitable, Callable, Sequence

from ropewalk.model.messages import Registered, RemoteDisconnect


class LocalPubSub:
    """Delivers before `publish` returns."""

    async def start(
        self, deliver: Callable[[Sequence[Registered]], None], obey: Callable[[RemoteDisconnect], Awaitable[int]]
    ) -> None:
        self._deliver = deliver
        self._obey = obey

    async def stop(self) -> None:
        pass

    def publish(self, messages: Sequence[Registered]) -> None:
        self._deliver(messages)

    async def command(self, order: RemoteDisconnect) -> int:
        return await self._obey(order)

    def trouble(self) -> str:
        return ""
