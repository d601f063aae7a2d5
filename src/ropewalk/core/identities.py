"""Connection identifiers as text. Usually JSON, which different libraries write with different spacing."""

import msgspec


def spellings(identifier: str) -> list[str]:
    """One identity as different JSON libraries write it: unchanged, without spaces, with a space after each `,` and `:`."""
    found = [identifier]
    if identifier[:1] in ("{", "["):
        try:
            found += [msgspec.json.format(identifier, indent=width) for width in (-1, 0)]
        except msgspec.MsgspecError:
            return found  # it only looks like JSON
    return list(dict.fromkeys(found))
