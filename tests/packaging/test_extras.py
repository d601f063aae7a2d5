"""All jobs of the pipeline run in an environment that pip makes from the documented extra alone."""

import os
import subprocess
from pathlib import Path

import pytest

from ropewalk.pipeline.jvm import find_java
from ropewalk.pipeline.registry import BUILT_IN
from ropewalk.pipeline.tables import read_table
from tests.cable import cable
from tests.metrics import metrics_when
from tests.packaging.environments import ROOT, installed
from tests.server import running_server
from tests.spark.java import FAST_START, PROCESS_TIMEOUT
from tests.spark.journal import FLAGS

OPTIONS = {
    "derive.sql": "SELECT at, upper(text) AS value FROM source",
    "derive.stream": "derived",
    "replay.match": "^",
    "replay.to": "copy/",
}


@pytest.mark.needs_java
@pytest.mark.timeout(PROCESS_TIMEOUT)
async def test_all_jobs_run_with_the_extra_for_spark(wheel: Path, tmp_path: Path) -> None:
    place = installed(tmp_path / "venv", "--constraint", str(ROOT / "constraints.txt"), f"{wheel}[spark]")
    (tmp_path / "ropewalk.toml").write_text(FAST_START)
    environ = {"PATH": os.environ["PATH"], "JAVA_HOME": str(find_java().parents[1])}
    with running_server(*FLAGS, "--data_dir", str(tmp_path / "data")) as server:
        async with cable(server) as client:
            await client.subscribe("room", presence={"id": "ann"})
        await metrics_when(server, lambda found: found["sessions"] == 0)
        sets = [word for option, value in OPTIONS.items() for word in ("--set", f"{option}={value}")]
        where = ["--url", server.url, "--state_dir", str(tmp_path / "state"), "--config_path", str(tmp_path / "ropewalk.toml")]
        run = [
            str(place / "bin" / "ropewalk"),
            "pipeline",
            "run",
            *BUILT_IN,
            "--available-now",
            "--restarts",
            "0",
            *where,
            *sets,
        ]
        ended = subprocess.run(run, env=environ, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    sessions = read_table(str(tmp_path / "state" / "tables" / "sessions"))
    assert sessions is not None
    assert sessions["sid"].to_pylist() == [client.sid]
