"""Request bodies: gathered as they arrive, inflated where they are compressed, never past a limit.

The server's HTTP parser leaves bodies as they were sent. What reads one calls `gather`, after it has checked who sends it.
"""

import asyncio
import zlib
from collections.abc import AsyncIterable, Mapping

from ropewalk.model.errors import BadBody, LateBody, TooLarge, Unavailable, UnsupportedEncoding

BODY_SECONDS = 30.0
"""How long a whole body may take. A sender that trickles holds memory and a connection that others could have."""

INLINE_BYTES = 64 * 1024
"""How much is inflated on the event loop, well under a millisecond's work; the rest of a larger body goes to a thread."""

_AUTO_HEADER = 32 + zlib.MAX_WBITS  # gzip or zlib, as the data says
_RAW = -zlib.MAX_WBITS


class Budget:
    """The bytes of unfinished bodies that may be in memory at once. Beyond it a body is refused with 503 instead of waiting."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._held = 0

    def take(self, size: int) -> None:
        if self._held + size > self._limit:
            raise Unavailable("too many request bodies are being sent at once")
        self._held += size

    def give_back(self, size: int) -> None:
        self._held -= size


KEYED = Budget(256 << 20)
"""Shared by the endpoints that ask for a key."""

ANONYMOUS = Budget(32 << 20)
"""Shared by those that do not, so that strangers cannot use up what publishers need."""


async def gather(
    chunks: AsyncIterable[bytes],
    headers: Mapping[str, str],
    limit: int,
    budget: Budget = KEYED,
    seconds: float = BODY_SECONDS,
) -> bytes:
    """The body, inflated. Raises TooLarge, UnsupportedEncoding, BadBody, Unavailable, and LateBody after `seconds`."""
    encoding = headers.get("Content-Encoding", "").strip().lower()
    if encoding not in ("", "identity", "gzip", "x-gzip", "deflate"):
        raise UnsupportedEncoding("a body may be sent plain, or with Content-Encoding gzip or deflate")
    # The limit holds for what is sent and for what it becomes. The announced size may be missing or wrong.
    announced = headers.get("Content-Length", "")
    if announced.isdecimal() and (len(announced) > 19 or int(announced) > limit):
        raise _too_large(limit)
    body = bytearray()
    try:
        async with asyncio.timeout(seconds):
            async for chunk in chunks:
                if len(body) + len(chunk) > limit:
                    raise _too_large(limit)
                budget.take(len(chunk))
                body += chunk
        return bytes(body) if encoding in ("", "identity") else await _inflated(bytes(body), encoding, limit)
    except TimeoutError:
        raise LateBody("the body did not come") from None
    finally:
        budget.give_back(len(body))


async def _inflated(data: bytes, encoding: str, limit: int) -> bytes:
    # "deflate" means the zlib format, but some senders leave its header out.
    raw = encoding == "deflate" and (data[:1] or b"\x78")[0] & 0x0F != zlib.DEFLATED
    inflater = zlib.decompressobj(_RAW if raw else _AUTO_HEADER)
    try:
        begin = inflater.decompress(data, min(INLINE_BYTES, limit + 1))
        if inflater.eof or len(begin) > limit:
            rest = b""
        else:
            # zlib releases the GIL while it works.
            rest = await asyncio.to_thread(inflater.decompress, inflater.unconsumed_tail, limit + 1 - len(begin))
    except zlib.error:
        raise BadBody("the body is not compressed as its Content-Encoding says") from None
    if len(begin) + len(rest) > limit:
        raise _too_large(limit)
    if not inflater.eof or inflater.unused_data:
        raise BadBody("the compressed body does not end where its data ends")
    return begin + rest


def _too_large(limit: int) -> TooLarge:
    return TooLarge(f"the body may have {limit} bytes")
