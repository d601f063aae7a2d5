"""The command that installs an extra. Error messages and docs get it from here, so that there is one place to change.

docs/install.md says the same at length.
"""


def install(*extras: str) -> str:
    """The command that brings these extras."""
    return f"pip install '.[{','.join(extras)}]' (in a clone of Ropewalk)"
