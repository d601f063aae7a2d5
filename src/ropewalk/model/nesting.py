"""The maximum nesting depth of JSON: one number for all endpoints, the same on every version of Python.

Decoders recurse, and their depth limit depends on the interpreter. So the depth of a text is measured before it is decoded.
"""

from itertools import accumulate

MAX_DEPTH = 128
"""Arrays and objects within each other. Ruby's JSON library stops at 100 by default, decoders in Python at about 1,000."""

TOO_DEEP = f"nested more than {MAX_DEPTH} deep"

_BLOCK = 4096  # brackets between two checks of the depth

_STEPS = bytes.maketrans(b"[{]}", b"\x01\x01\xff\xff")  # read as signed bytes: 1 and -1
_OTHER = bytes(set(range(256)) - set(b"[{]}"))


def is_too_deep(text: bytes | str, limit: int = MAX_DEPTH) -> bool:
    """True if JSON text is nested more than `limit` deep. For text that is not JSON the result is an upper estimate."""
    if len(text) <= limit:
        return False
    data = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
    # Most texts have fewer brackets than that, and need no further check.
    if data.count(b"[") + data.count(b"{") <= limit or data.lstrip(b" \t\r\n")[:1] not in (b"[", b"{"):
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")
    outside = b"".join(data.split(b'"')[::2])
    brackets = outside.translate(_STEPS, _OTHER)
    # Without its innermost pairs the text is at most one less deep. Long lists of flat values consist of such pairs.
    if brackets.replace(b"\x01\xff", b"").count(1) < limit:
        return False
    steps = memoryview(brackets).cast("b")
    depth = 0
    for begin in range(0, len(steps), _BLOCK):
        depths = list(accumulate(steps[begin : begin + _BLOCK], initial=depth))
        if max(depths) > limit:
            return True
        depth = depths[-1]
    return False
