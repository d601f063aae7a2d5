"""How an extra is installed. Whatever tells people to install one asks here, so that there is one place to change.

docs/install.md says the same at length.
"""


def install(*extras: str) -> str:
    """The command that brings these extras."""
    return f"pip install '.[{','.join(extras)}]' (in a clone of Ropewalk)"
