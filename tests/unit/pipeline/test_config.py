"""Settings of runs and jobs from the file and the command line, and their errors."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.config import RunSettings, job_options, overridden, read_file, seconds, with_assignments
from ropewalk.pipeline.jobs.compact import CompactOptions
from ropewalk.pipeline.jobs.replay import ReplayOptions
from ropewalk.pipeline.jobs.rollup import RollupOptions
from ropewalk.pipeline.registry import Job, find_job, job, load_jobs

FILE = """
[server]
port = 9000

[pipeline]
archive_dir = "cold"
imports = ["one"]

[pipeline.spark]
"spark.master" = "local[4]"

[pipeline.rollup]
trigger = "1m"
max_rows = 5

[pipeline."derive:errors"]
stream = "errors"
"""


@pytest.fixture
def jobs() -> dict[str, Job]:
    return load_jobs()


def test_file_has_run_settings_and_job_sections(tmp_path: Path, jobs: dict[str, Job]) -> None:
    path = tmp_path / "ropewalk.toml"
    path.write_text(FILE)
    settings, sections = read_file(path)

    assert settings == RunSettings(archive_dir="cold", imports=("one",), spark={"spark.master": "local[4]"})
    options = job_options(jobs["rollup"], sections)
    assert isinstance(options, RollupOptions)
    assert (options.trigger, options.max_rows, options.lateness) == ("1m", 5, "1m")
    assert job_options(find_job("derive:errors", jobs), sections, "derive:errors").stream == "errors"  # type: ignore[attr-defined]


def test_flags_override_the_file_and_imports_are_added() -> None:
    settings = RunSettings(url="http://a", imports=("one",), restarts=2)

    assert overridden(settings, {"url": "http://b", "restarts": None, "imports": ("two",)}) == RunSettings(
        url="http://b", imports=("one", "two"), restarts=2
    )


def test_assignment_overrides_the_file(jobs: dict[str, Job]) -> None:
    sections = with_assignments({"replay": {"speed": 1.0, "name": "x"}}, ["replay.speed=2.5", "replay.source=journal"])

    options = job_options(jobs["replay"], sections)

    assert isinstance(options, ReplayOptions)
    assert (options.speed, options.name, options.source) == (2.5, "x", "journal")


def test_error_in_a_section_names_the_section(jobs: dict[str, Job], subtests: pytest.Subtests) -> None:
    cases: list[tuple[dict[str, object], str]] = [
        ({"triger": "1s"}, "has no key triger; did you mean trigger?"),
        ({"max_rows": "many"}, "[pipeline.rollup]: Expected `int`"),
        ({"max_rows": -1}, "[pipeline.rollup]: Expected `int` >= 0"),
    ]
    for section, message in cases:
        with subtests.test(section=section):
            with pytest.raises(UserMistake) as mistake:
                job_options(jobs["rollup"], {"rollup": section})
            assert message in str(mistake.value)


def test_invalid_time_is_rejected_before_the_job_runs(jobs: dict[str, Job], subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [
        ("replay.since=abc", "[pipeline.replay]: a time is written like 2026-01-31 or 2026-01-31T12:00:00Z, not 'abc'"),
        ("replay.until=31.1.2026", "[pipeline.replay]: a time is written like"),
        ("compact.before=abc", "[pipeline.compact]: a date is written like 2026-01-31, not 'abc'"),
        ("compact.before=2026-02-30", "[pipeline.compact]: a date is written like"),
    ]
    for assignment, message in cases:
        with subtests.test(assignment=assignment):
            with pytest.raises(UserMistake) as mistake:
                job_options(jobs[assignment.partition(".")[0]], with_assignments({}, [assignment]))
            assert str(mistake.value).startswith(message)


def test_date_is_normalized(jobs: dict[str, Job]) -> None:
    options = job_options(jobs["compact"], {"compact": {"before": "20260131"}})
    assert isinstance(options, CompactOptions)
    assert options.first_day_left() == "2026-01-31"


def test_malformed_assignment_is_rejected(subtests: pytest.Subtests) -> None:
    for text in ["rollup=1", "trigger", ".x=1", "rollup.=1"]:
        with subtests.test(text=text), pytest.raises(UserMistake, match=r"JOB\.KEY=VALUE"):
            with_assignments({}, [text])


def test_durations_have_units(subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, float]] = [("100ms", 0.1), ("10s", 10.0), ("2", 2.0), ("1.5m", 90.0), ("24h", 86400.0)]
    for text, expected in cases:
        with subtests.test(text=text):
            assert seconds(text) == pytest.approx(expected)


def test_malformed_duration_is_rejected() -> None:
    with pytest.raises(UserMistake, match="not '10 seconds'"):
        seconds("10 seconds")


def test_unknown_job_is_rejected_with_the_nearest_name(jobs: dict[str, Job]) -> None:
    with pytest.raises(UserMistake, match="did you mean archive"):
        find_job("archiv", jobs)


def test_job_name_must_be_unique(jobs: dict[str, Job]) -> None:
    with pytest.raises(UserMistake, match=r"from ropewalk\.pipeline\.jobs\.audit"):
        job("audit")(lambda context, options: 0)


def test_missing_module_is_rejected_with_a_hint() -> None:
    with pytest.raises(UserMistake, match="PYTHONPATH"):
        load_jobs(["no_such_module_anywhere"])
