"""One type, one name: whoever reads a name in one module need not wonder whether it is that of another."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import ropewalk

OURS = Path(ropewalk.__file__).parent

PUBLIC = {"Client", "Connection", "Gap", "Publisher", "Rejected", "Subscription"}
"""The field's word for what users of the SDK, authors of channels or their tests hold, and for the server's own side."""

SCHEMA = "protocol/broky/frames.py"
"""Its types have the names that the schema of Broky gives them, and are used as `frames.Run` and the like."""


def types_of(source: str) -> Iterator[str]:
    """Classes, wherever they are, and the aliases of a module; not what is private to a module."""
    tree = ast.parse(source)
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name[0].isupper() and not name.isupper())


def test_no_two_types_have_one_name() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(OURS.rglob("*.py")):
        if path == OURS / SCHEMA:
            continue
        for name in types_of(path.read_text()):
            where[name].append(str(path.relative_to(OURS)))
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in PUBLIC} == {}
    assert twice.keys() == PUBLIC
