"""Subscriptions to all streams whose key begins with a prefix: live messages only, without history.

Each such subscription receives each message once, in the order of its stream. Messages that the feed loses cannot be read
again, because the affected streams are not known. So a gap reports that messages may be missing.
"""

from collections import Counter
from collections.abc import Callable, Container, Sequence
from functools import partial
from itertools import groupby
from operator import attrgetter

from ropewalk.core.names import PrefixTable
from ropewalk.engine.audience import Audience, Group
from ropewalk.engine.hub import Hub
from ropewalk.engine.link import Link
from ropewalk.engine.subscription import Subscription
from ropewalk.model.commands import SubscribePrefix
from ropewalk.model.errors import Unavailable
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.messages import Deliverable, Position
from ropewalk.model.sessions import NotGranted
from ropewalk.ports import Feed, PrefixFeed
from ropewalk.protocol.codec import MessageCodec

MAX_PREFIXES = 256
"""Different prefixes in one process. Every registered message is compared with them."""

MAX_PREFIXES_PER_CONNECTION = 32

NOT_HERE = NotGranted("unavailable", "with this broker there are no subscriptions by prefix: subscribe to each key")
TOO_MANY = NotGranted("overflow", f"more than {MAX_PREFIXES} prefixes are subscribed to here: subscribe to each key")
TOO_MANY_OF_ONE = NotGranted(
    "overflow", f"more than {MAX_PREFIXES_PER_CONNECTION} prefixes in one connection: subscribe to each key"
)
AWAY = NotGranted("unavailable", "the store does not answer: subscribe again")


class PrefixCodec:
    """A `MessageCodec` for messages of several streams. A gap names the prefix and has no position."""

    def __init__(self, codec: MessageCodec) -> None:
        self._codec = codec
        self.head = codec.head

    def batch(self, head: bytes, messages: Sequence[Deliverable]) -> bytes:
        return b"".join(self._codec.batch(head, list(some)) for _, some in groupby(messages, attrgetter("stream")))

    def reject_history(self, identifier: str, gaps: Sequence[Gap]) -> bytes:
        return self._codec.reject_history(identifier, [Gap(gap.stream, gap.reason, "", 1, 0) for gap in gaps])


class Prefixes:
    """`by_length` is empty while there are no prefix subscriptions.

    Args:
        set_listened: called with a container of all streams that have a listener here, whenever that object changes.
    """

    def __init__(
        self, feed: Feed, hub: Hub, stream_key: Callable[[str], bytes], set_listened: Callable[[Container[str]], None]
    ) -> None:
        self._stream_key = stream_key
        self._set_listened = set_listened
        self._feed = feed if isinstance(feed, PrefixFeed) else None
        self._hub = hub
        self._audiences: PrefixTable[Audience] = PrefixTable()
        self._joining: Counter[bytes] = Counter()
        self._codecs: dict[MessageCodec, PrefixCodec] = {}
        self.by_length = self._audiences.by_length

    async def join(self, link: Link, subscription: Subscription, wanted: SubscribePrefix) -> NotGranted | None:
        """Deliver messages with the prefix to the link from now on. Returns None, or why the subscription is refused."""
        prefix = wanted.prefix
        if self._feed is None:
            return NOT_HERE
        if link.prefixes >= MAX_PREFIXES_PER_CONNECTION:
            return TOO_MANY_OF_ONE
        if prefix not in self._audiences and len(self._audiences) + len(self._joining) >= MAX_PREFIXES:
            return TOO_MANY
        self._joining[prefix] += 1
        refused = None
        try:
            await self._feed.listen_prefix(prefix)
        except Unavailable:
            refused = AWAY
        self._joining -= Counter([prefix])
        if refused is None and link.open:
            subscription.groups = (self._enter(wanted, self._codec_for(link.codec.messages), link),)
        self._unlisten_if_unwanted(prefix)
        return refused

    def _codec_for(self, codec: MessageCodec) -> PrefixCodec:
        """One prefix codec per codec, so that its listeners share a group."""
        return self._codecs.setdefault(codec, PrefixCodec(codec))

    def _enter(self, wanted: SubscribePrefix, codec: PrefixCodec, link: Link) -> Group:
        prefix = wanted.prefix
        audience = self._audiences.get(prefix)
        if audience is None:
            audience = Audience(wanted.name)
            self._audiences.put(prefix, audience)
            self._set_listened(self)
        return self._hub.enter(audience, wanted.identifier, codec, link, partial(self._left, prefix))

    def _left(self, prefix: bytes, group: Group) -> None:
        audience = self._audiences.get(prefix)
        if audience is not None:
            audience.remove(group)
            if not audience.groups:
                self._audiences.remove(prefix)
                if not self.by_length:
                    self._set_listened(self._hub.listened_streams)
                self._unlisten_if_unwanted(prefix)

    def _unlisten_if_unwanted(self, prefix: bytes) -> None:
        if self._feed is not None and prefix not in self._audiences and not self._joining[prefix]:
            self._feed.unlisten_prefix(prefix)

    def __contains__(self, stream: object) -> bool:
        """Whether the stream has a listener, by its prefix or by its name."""
        if stream in self._hub.listened_streams:
            return True
        return isinstance(stream, str) and bool(self._audiences.matching(self._stream_key(stream)))

    def deliver(self, messages: Sequence[Deliverable]) -> None:
        """Deliver messages of the feed to prefix subscriptions, before the other listeners get them."""
        stream, wanting = "", list[Audience]()
        for message in messages:
            if message.stream != stream:
                stream = message.stream
                wanting = self._audiences.matching(self._stream_key(stream))
            for audience in wanting:
                self._hub.deliver(audience, message)

    def missed(self) -> None:
        """Messages of any stream may be lost: send a gap to every prefix subscription."""
        for audience in self._audiences.values():
            gap = Gap(audience.stream, GapReason.TRIMMED, "", 1, 0)
            self._hub.send_gap(audience, gap, Position("", 0))
