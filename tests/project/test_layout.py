"""Where a test stands follows from what it tests."""

from pathlib import Path

from tests.tiers import DIRECTORIES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ropewalk"
UNIT = ROOT / "tests" / "unit"


def test_every_unit_test_file_is_named_after_its_module() -> None:
    files = [path.relative_to(UNIT) for path in UNIT.rglob("test_*.py")]
    tested = {path: SOURCE / path.with_name(path.name.removeprefix("test_")) for path in files}
    assert [str(path) for path, module in tested.items() if not module.is_file()] == []


def test_every_directory_of_tests_has_a_tier() -> None:
    tests = ROOT / "tests"
    assert {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py")} == DIRECTORIES.keys()
