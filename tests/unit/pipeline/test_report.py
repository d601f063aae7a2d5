"""Where an audit's report goes is looked at before the audit, and what cannot be written is said once."""

from pathlib import Path

import pytest

from ropewalk.model.errors import UserMistake
from ropewalk.pipeline.context import Context, Place
from ropewalk.pipeline.jobs.audit import AuditOptions, audit, write_report
from ropewalk.pipeline.report import AuditReport, Part


def context(home: Path) -> Context:
    def no_spark() -> None:
        raise AssertionError("the audit has begun")

    return Context(Place("http://127.0.0.1:9", "", str(home), home, retries=0), no_spark)  # type: ignore[arg-type]


@pytest.mark.parametrize(("place", "said"), [("absent/report.json", "there is no directory"), ("", "is a directory")])
def test_a_place_where_no_report_can_be_is_refused_before_the_audit(tmp_path: Path, place: str, said: str) -> None:
    with pytest.raises(UserMistake, match=said):
        audit(context(tmp_path), AuditOptions(report=str(tmp_path / place)))


def test_a_report_that_cannot_be_written_is_a_mistake_and_no_reason_to_audit_again(tmp_path: Path) -> None:
    report = AuditReport(0, 0, Part.of({}), Part.of({}), 0, ())
    with pytest.raises(UserMistake, match="could not be written"):
        write_report(report, tmp_path / "gone" / "report.json")
