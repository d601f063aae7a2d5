"""Settings of runs and jobs: what is written reaches its job, and what is misspelt is said."""

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


def test_a_file_has_settings_for_the_run_and_a_section_for_each_job(tmp_path: Path, jobs: dict[str, Job]) -> None:
    path = tmp_path / "ropewalk.toml"
    path.write_text(FILE)
    settings, sections = read_file(path)

    assert settings == RunSettings(archive_dir="cold", imports=("one",), spark={"spark.master": "local[4]"})
    options = job_options(jobs["rollup"], sections)
    assert isinstance(options, RollupOptions)
    assert (options.trigger, options.max_rows, options.lateness) == ("1m", 5, "1m")
    assert job_options(find_job("derive:errors", jobs), sections, "derive:errors").stream == "errors"  # type: ignore[attr-defined]


def test_flags_win_and_modules_add_up() -> None:
    settings = RunSettings(url="http://a", imports=("one",), restarts=2)

    assert overridden(settings, {"url": "http://b", "restarts": None, "imports": ("two",)}) == RunSettings(
        url="http://b", imports=("one", "two"), restarts=2
    )


def test_an_assignment_on_the_command_line_is_read_as_the_file_would_be(jobs: dict[str, Job]) -> None:
    sections = with_assignments({"replay": {"speed": 1.0, "name": "x"}}, ["replay.speed=2.5", "replay.source=journal"])

    options = job_options(jobs["replay"], sections)

    assert isinstance(options, ReplayOptions)
    assert (options.speed, options.name, options.source) == (2.5, "x", "journal")


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"triger": "1s"}, "has no key triger; did you mean trigger?"),
        ({"max_rows": "many"}, "[pipeline.rollup]: Expected `int`"),
        ({"max_rows": -1}, "[pipeline.rollup]: Expected `int` >= 0"),
    ],
)
def test_a_mistake_in_a_section_is_said_with_its_place(section: dict[str, object], said: str, jobs: dict[str, Job]) -> None:
    with pytest.raises(UserMistake) as mistake:
        job_options(jobs["rollup"], {"rollup": section})
    assert said in str(mistake.value)


@pytest.mark.parametrize(
    ("assignment", "said"),
    [
        ("replay.since=abc", "[pipeline.replay]: a time is written like 2026-01-31 or 2026-01-31T12:00:00Z, not 'abc'"),
        ("replay.until=31.1.2026", "[pipeline.replay]: a time is written like"),
        ("compact.before=abc", "[pipeline.compact]: a date is written like 2026-01-31, not 'abc'"),
        ("compact.before=2026-02-30", "[pipeline.compact]: a date is written like"),
    ],
)
def test_a_value_that_means_nothing_is_refused_before_the_job_runs(assignment: str, said: str, jobs: dict[str, Job]) -> None:
    with pytest.raises(UserMistake) as mistake:
        job_options(jobs[assignment.partition(".")[0]], with_assignments({}, [assignment]))
    assert str(mistake.value).startswith(said)


def test_a_date_is_compared_as_the_table_writes_it(jobs: dict[str, Job]) -> None:
    options = job_options(jobs["compact"], {"compact": {"before": "20260131"}})
    assert isinstance(options, CompactOptions)
    assert options.first_day_left() == "2026-01-31"


@pytest.mark.parametrize("text", ["rollup=1", "trigger", ".x=1", "rollup.=1"])
def test_an_assignment_names_job_key_and_value(text: str) -> None:
    with pytest.raises(UserMistake, match=r"JOB\.KEY=VALUE"):
        with_assignments({}, [text])


@pytest.mark.parametrize(("text", "expected"), [("100ms", 0.1), ("10s", 10.0), ("2", 2.0), ("1.5m", 90.0), ("24h", 86400.0)])
def test_durations_are_written_with_a_unit(text: str, expected: float) -> None:
    assert seconds(text) == pytest.approx(expected)


def test_a_duration_of_another_spelling_is_a_mistake() -> None:
    with pytest.raises(UserMistake, match="not '10 seconds'"):
        seconds("10 seconds")


def test_a_misspelt_job_gets_the_nearest_name(jobs: dict[str, Job]) -> None:
    with pytest.raises(UserMistake, match="did you mean archive"):
        find_job("archiv", jobs)


def test_two_jobs_cannot_have_one_name(jobs: dict[str, Job]) -> None:
    with pytest.raises(UserMistake, match=r"from ropewalk\.pipeline\.jobs\.audit"):
        job("audit")(lambda context, options: 0)


def test_a_module_that_is_not_there_is_a_mistake() -> None:
    with pytest.raises(UserMistake, match="PYTHONPATH"):
        load_jobs(["no_such_module_anywhere"])
