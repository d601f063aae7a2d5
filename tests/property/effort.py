"""How hard property tests try: enough to find what we broke on purpose, and no deadlines, since a busy machine is not a bug."""

from hypothesis import settings

EFFORT = settings()
