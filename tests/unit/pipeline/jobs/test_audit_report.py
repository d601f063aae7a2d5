"""The report file of an audit is checked before the audit, and a failed write is not retried."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.context import Context, Place
from ropewalk.pipeline.jobs.audit import AuditOptions, AuditReport, Part, audit, write_report


def context(home: Path) -> Context:
    def no_spark() -> None:
        raise AssertionError("the audit has started")

    return Context(Place("http://127.0.0.1:9", "", str(home), home, retries=0), no_spark)  # type: ignore[arg-type]


def test_invalid_report_path_is_rejected_before_the_audit(tmp_path: Path, subtests: pytest.Subtests) -> None:
    cases: list[tuple[str, str]] = [("absent/report.json", "there is no directory"), ("", "is a directory")]
    for path, message in cases:
        with subtests.test(path=path), pytest.raises(UserMistake, match=message):
            audit(context(tmp_path), AuditOptions(report=str(tmp_path / path)))


def test_failed_write_of_the_report_is_not_retried(tmp_path: Path) -> None:
    report = AuditReport(0, 0, Part.of({}), Part.of({}), 0, ())
    with pytest.raises(UserMistake, match="could not be written"):
        write_report(report, tmp_path / "gone" / "report.json")
