"""The pages on Broky: settings, metrics, commands, schema and bytes agree with the code."""

import re
import shlex

from ropewalk.app.settings import load, require_startable
from ropewalk.app.settings.sections import SETTINGS
from ropewalk.protocol.broky.forwarding import PREFIX
from tests.docs.pages import ROOT, blocks

PAGE = ROOT / "docs" / "topics" / "broky.md"
REFERENCE = ROOT / "docs" / "reference" / "broky.md"


def test_the_number_of_settings_is_right() -> None:
    [said] = re.findall(r"some (\d+) settings", PAGE.read_text())
    assert int(said) == round(len(SETTINGS), -1)


def test_its_metrics_are_in_the_metrics_reference() -> None:
    listed = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    named = set(re.findall(r"`((?:ropewalk|process)_\w+)`", PAGE.read_text()))
    assert len(named) > 10
    assert [name for name in sorted(named) if f"| `{name}` |" not in listed] == []


def test_the_flags_of_its_servers_are_valid() -> None:
    commands = [block.text.replace("\\\n", " ") for block in blocks(PAGE)]
    assert len(commands) == 2
    for command in commands:
        _, _, *flags = shlex.split(command)
        require_startable(load(flags, {"ROPEWALK_CONFIG_PATH": "", "ROPEWALK_SECRET": "s"}))


def test_the_reference_shows_the_current_schema() -> None:
    schema = (ROOT / "src/ropewalk/protocol/broky/broky.fbs").read_text().strip()
    assert f"```text\n{schema}\n```" in REFERENCE.read_text()


def test_the_reference_shows_the_prefix_of_a_run() -> None:
    assert PREFIX.hex() in "".join(REFERENCE.read_text().split())
