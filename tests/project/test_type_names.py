"""No two types share a name, so that a reader never has to check which one is meant."""

import ast
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import ropewalk

OURS = Path(ropewalk.__file__).parent

PUBLIC = {"Client", "Connection", "Gap", "Publisher", "Rejected", "Subscription"}
"""Used twice on purpose: the SDK or the channels API and the server each have one, under the usual word of the field."""

SCHEMA = "protocol/broky/frames.py"
"""Its types are named by the FlatBuffers schema, and used with their module: `frames.Run`."""


def public_types(source: str) -> Iterator[str]:
    """Public classes at any depth, and type aliases of the module."""
    tree = ast.parse(source)
    yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and not node.name.startswith("_"))
    for node in tree.body:
        if isinstance(node, ast.Assign):
            names = [target.id for target in node.targets if isinstance(target, ast.Name)]
            yield from (name for name in names if name[0].isupper() and not name.isupper())


def test_no_two_types_share_a_name() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for path in sorted(OURS.rglob("*.py")):
        if path == OURS / SCHEMA:
            continue
        for name in public_types(path.read_text()):
            where[name].append(str(path.relative_to(OURS)))
    twice = {name: paths for name, paths in where.items() if len(paths) > 1}
    assert {name: paths for name, paths in twice.items() if name not in PUBLIC} == {}
    assert twice.keys() == PUBLIC
