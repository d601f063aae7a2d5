"""The Markdown pages of the project with their links, headings and fenced blocks.

The second word of a fence says how a reader runs the block: `run` ends on its own, `follow` keeps printing, `serve` keeps
serving, and a `file` is saved under the name in its first line, a comment. With `&` after each command there are several
servers in one block.
Renderers show only the first word, the language. A block without a second word is not run.
"""

import re
from pathlib import Path

from msgspec import Struct

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.md")])

_FENCE = re.compile(r"^```(?P<language>\w*)(?: (?P<role>\w+))?\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"!?\[[^\]]*\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+)$", re.MULTILINE)
_INLINE_CODE = re.compile(r"`[^`\n]*`")


class Block(Struct, frozen=True):
    language: str
    role: str
    text: str


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def blocks(page: Path) -> list[Block]:
    return [Block(found["language"], found["role"] or "", found["text"]) for found in _FENCE.finditer(page.read_text())]


def links(page: Path) -> list[str]:
    """Targets inside the project. Code blocks and external addresses are left out."""
    prose = _INLINE_CODE.sub("", _FENCE.sub("", page.read_text()))
    targets = (found["target"] for found in _LINK.finditer(prose))
    return [target for target in targets if not target.startswith(("http://", "https://", "mailto:"))]


def anchors(page: Path) -> set[str]:
    """The fragments of the headings, as GitHub generates them."""
    titles = (found["title"] for found in _HEADING.finditer(_FENCE.sub("", page.read_text())))
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}
