"""Where a test stands follows from what it tests."""

from pathlib import Path

from tests.tiers import DIRECTORIES

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src" / "ropewalk"
UNIT = ROOT / "tests" / "unit"


def is_named_after_a_module(path: Path) -> bool:
    """Whether the file is `test_<module>.py` (or of a package) or, for a part of a large one, `test_<module>_<part>.py`."""
    words = path.stem.split("_")[1:]
    names = ["_".join(words[:count]) for count in range(1, len(words) + 1)]
    package = SOURCE / path.parent.relative_to(UNIT)
    return any((package / f"{name}.py").is_file() or (package / name / "__init__.py").is_file() for name in names)


def test_every_unit_test_file_is_named_after_its_module() -> None:
    assert [str(path.relative_to(UNIT)) for path in sorted(UNIT.rglob("test_*.py")) if not is_named_after_a_module(path)] == []


def test_every_directory_of_tests_has_a_tier() -> None:
    tests = ROOT / "tests"
    assert {path.relative_to(tests).parts[0] for path in tests.rglob("test_*.py")} == DIRECTORIES.keys()
