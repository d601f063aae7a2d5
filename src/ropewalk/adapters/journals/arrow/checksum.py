"""Small files with a checksum: a body, and a line with its CRC."""

from zlib import crc32


def checked(body: bytes) -> bytes:
    """`body` has no line end in it, as JSON has none."""
    return b"%s\n%08x\n" % (body, crc32(body))


def unchecked(data: bytes) -> bytes:
    """Raises ValueError for what is not as it was written."""
    body, checksum, _ = data.split(b"\n")
    if int(checksum, 16) != crc32(body):
        raise ValueError("the checksum is wrong")
    return body
