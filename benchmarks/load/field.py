"""The commands of the load process: crowds by name, each with its own reader.

This is the whole surface that the measurements see of it.
"""

from benchmarks.load.crowd import Address, Crowd, Resumed
from benchmarks.load.drain import Drain, Drained
from benchmarks.load.link import Stage
from benchmarks.load.tcp import TcpCrowd


class Field:
    """Lives in the load process (see `benchmarks.remote`)."""

    def __init__(self) -> None:
        self._crowds: dict[str, Crowd] = {}
        self._drains: dict[str, Drain] = {}

    def open(
        self,
        crowd: str,
        address: Address,
        path: str,
        stream: str,
        count: int,
        stage: Stage,
        epoch: str = "",
        offset: int = 0,
    ) -> float:
        """A new crowd of `count` connections, each brought to `stage`; the seconds it took. With an epoch they subscribe with
        history, for all that follows this position."""
        self._crowds[crowd] = Crowd(address, path, stream)
        seconds = self._crowds[crowd].open(count, stage, epoch, offset)
        self._drains[crowd] = Drain(self._crowds[crowd])
        return seconds

    def open_tcp(self, crowd: str, address: Address, stream: str, count: int) -> None:
        """A new crowd of so many TCP subscribers, which can only be drained and closed."""
        self._crowds[crowd] = TcpCrowd(address, stream)
        self._crowds[crowd].open(count, Stage.SUBSCRIBED)
        self._drains[crowd] = Drain(self._crowds[crowd])

    def drain(self, crowd: str, bounds: list[int], checked: bool = False) -> Drained:
        return self._drains[crowd].read(bounds, checked)

    def cut(self, crowd: str) -> None:
        self._crowds[crowd].cut()

    def resume(self, crowd: str, epoch: str) -> Resumed:
        return self._crowds[crowd].resume(epoch)

    def count_wrong(self, crowd: str, offset: int) -> int:
        return self._crowds[crowd].count_wrong(offset)

    def probe(self, crowd: str, offset: int) -> bytes:
        """Read until everyone is at `offset`; the message that was there, as one of them got it."""
        self._crowds[crowd].count_wrong(offset)
        return next(iter(self._crowds[crowd].links.values())).last

    def replayed(self, crowd: str, offset: int) -> int:
        """Counts history messages of the connections that now have every offset up to `offset`, once and in order."""
        links = self._crowds[crowd].links.values()
        return sum(link.replayed for link in links if link.offset == offset and not link.errors)

    def close(self, crowd: str) -> None:
        """A crowd that is no longer needed."""
        self._crowds.pop(crowd).cut()
        del self._drains[crowd]
