"""Names of a package that are imported when first asked for: who wants one of them does not pay for the others."""

from collections.abc import Callable
from importlib import import_module
from typing import Any


def exports(namespace: dict[str, Any], table: dict[str, str]) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """`__getattr__` and `__dir__` of the module with this namespace; the table says in which module each name is."""

    def get(name: str) -> Any:
        if name not in table:
            raise AttributeError(f"module {namespace['__name__']!r} has no attribute {name!r}")
        namespace[name] = value = getattr(import_module(table[name]), name)
        return value

    return get, lambda: sorted({*namespace, *table})
