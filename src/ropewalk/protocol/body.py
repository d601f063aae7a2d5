"""A request's body, gathered as it arrives and never past its limit."""

from collections.abc import AsyncIterable

from ropewalk.model.errors import TooLarge


async def gather(chunks: AsyncIterable[bytes], announced: int | None, limit: int) -> bytes:
    """Bounded twice: by what the sender announces, and, as that may be missing or compressed, by what arrives."""
    if announced is not None and announced > limit:
        raise TooLarge(f"the body may have {limit} bytes")
    body = bytearray()
    async for chunk in chunks:
        body += chunk
        if len(body) > limit:
            raise TooLarge(f"the body may have {limit} bytes")
    return bytes(body)
