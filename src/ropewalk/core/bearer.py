"""Who may use an HTTP door that is kept by a key. The comparison itself is `signing`'s, in constant time."""

from ropewalk.core.signing import matches


def admitted(authorization: str, key: str) -> bool:
    """Whether an Authorization header shows the key. An empty key is an open door, which only the public mode sets up."""
    if not key:
        return True
    scheme, _, given = authorization.partition(" ")
    return scheme.lower() == "bearer" and matches(given.strip(), key)
