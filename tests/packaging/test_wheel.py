"""The wheel of `make dist` and the container image: their contents, and servers that run from them."""

import json
import re
import subprocess
import sys
import tomllib
import urllib.request
import zipfile
from pathlib import Path

import pytest

from ropewalk.app.settings import load, require_startable
from ropewalk.model.errors import UserMistake
from tests.packaging.environments import GENERATED, ROOT, installed
from tests.scenarios.command_line import run_ropewalk
from tests.server import publish, running_server

SOURCE = ROOT / "src"

INSTRUCTION = re.compile(r"^([A-Z]+) +((?:.*\\\n)*.*)$", re.MULTILINE)


# --- the wheel --------------------------------------------------------------------------------------------------------


def test_wheel_has_all_modules_and_data_files_and_nothing_else(wheel: Path) -> None:
    ours = [path for path in SOURCE.rglob("*") if path.is_file() and not GENERATED.search(str(path))]
    names = zipfile.ZipFile(wheel).namelist()
    found = [name for name in names if ".dist-info/" not in name]
    assert sorted(found) == sorted(str(path.relative_to(SOURCE)) for path in ours)
    assert {"ropewalk/py.typed", "ropewalk/protocol/broky/broky.fbs", "ropewalk/dashboard/static/demo.html"} < {*found}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)


def test_source_distribution_has_the_version_of_the_wheel(built: Path, wheel: Path) -> None:
    version = wheel.name.split("-")[1]
    assert [path.name for path in built.glob("*.tar.gz")] == [f"ropewalk-{version}.tar.gz"]


async def test_server_runs_from_the_installed_wheel(wheel: Path, tmp_path: Path) -> None:
    """In a virtual environment that takes its libraries from that of the tests, by a .pth file."""
    place = installed(tmp_path / "venv", "--no-index", "--no-deps", str(wheel))
    python = str(place / "bin" / "python")
    [packages] = place.glob("lib/python*/site-packages")
    (packages / "libraries.pth").write_text("\n".join(path for path in sys.path if path.endswith("site-packages")))
    where = [python, "-c", "import ropewalk; print(ropewalk.__file__)"]
    assert str(place) in subprocess.run(where, check=True, env={}, capture_output=True, text=True).stdout

    with running_server("--demo", program=(str(place / "bin" / "ropewalk"),)) as server:
        assert (await publish(server, "news", "1"))["offset"] == 1
        for path in ("/health", "/demo", "/ropewalk.js"):
            assert urllib.request.urlopen(f"{server.url}{path}").status == 200  # noqa: ASYNC210
        assert server.stop() == 0


# --- the container ----------------------------------------------------------------------------------------------------


class Image:
    """The last stage of the Dockerfile, parsed and not built."""

    def __init__(self) -> None:
        self.instructions = INSTRUCTION.findall((ROOT / "Dockerfile").read_text())
        starts = [number for number, (word, _) in enumerate(self.instructions) if word == "FROM"]
        self.stage = self.instructions[starts[-1] :]

    def only(self, word: str) -> str:
        [found] = [rest for instruction, rest in self.stage if instruction == word]
        return str(found)

    def words(self, word: str) -> list[str]:
        found: list[str] = json.loads(self.only(word).partition("[")[1] + self.only(word).partition("[")[2])
        return found

    @property
    def variables(self) -> dict[str, str]:
        pairs = (pair.partition("=") for pair in self.only("ENV").replace("\\\n", " ").split())
        return {name: value for name, _, value in pairs if name.startswith("ROPEWALK_")}


@pytest.fixture
def image() -> Image:
    return Image()


def test_container_command_is_valid_and_needs_a_secret(image: Image) -> None:
    command, *flags = image.words("CMD")
    assert (image.words("ENTRYPOINT"), command) == (["ropewalk"], "serve")
    variables = {**image.variables, "ROPEWALK_CONFIG_PATH": ""}
    with pytest.raises(UserMistake, match="ROPEWALK_SECRET=SECRET"):
        require_startable(load(flags, variables))
    settings = load(flags, {**variables, "ROPEWALK_SECRET": "a secret that is long enough"})
    require_startable(settings)
    assert settings.server.host == "0.0.0.0"
    assert image.only("EXPOSE") == str(settings.server.port)


def test_container_user_is_not_root_and_owns_the_volume(image: Image) -> None:
    [made] = [rest for word, rest in image.stage if word == "RUN" and "useradd" in rest]
    [volume] = image.words("VOLUME")
    assert image.only("USER") == "ropewalk"
    assert f"--home-dir {volume} --create-home ropewalk" in made
    assert image.only("WORKDIR") == volume


def test_container_installs_existing_extras_on_a_supported_python(image: Image) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert any("--constraint constraints.txt" in rest for word, rest in image.instructions if word == "RUN")
    [extras] = [rest.removeprefix("EXTRAS=") for word, rest in image.instructions if word == "ARG"]
    assert {*extras.split(",")} <= project["optional-dependencies"].keys()
    versions = {re.findall(r"^python:([\d.]+)-slim", rest)[0] for word, rest in image.instructions if word == "FROM"}
    assert [f"Programming Language :: Python :: {version}" in project["classifiers"] for version in versions] == [True]


def test_container_health_check_fails_when_the_server_is_stopped(image: Image) -> None:
    program, *words = image.words("HEALTHCHECK")
    assert program == "ropewalk"
    with running_server("--public", "--host", "0.0.0.0") as server:
        place = {**image.variables, "ROPEWALK_PORT": str(server.port)}
        answered = run_ropewalk(*words, **place)
        assert (answered.stdout, answered.returncode) == ("ok\n", 0)
        server.stop()
        refused = run_ropewalk(*words, **place)
    assert refused.returncode == 1
    assert "is the server running there?" in refused.stderr
