"""Builds the npm package of the JavaScript client: `python distribution/npm_package.py DIRECTORY`.

The package has the file that servers serve, unchanged, and the types that TypeScript derives from it.
"""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
CLIENT = ROOT / "src" / "ropewalk" / "javascript"
TSC = ROOT / "tests" / "clients" / "node_modules" / ".bin" / "tsc"
CHECKS = (
    "--allowJs",
    "--checkJs",
    "--strict",
    "--target",
    "es2022",
    "--module",
    "nodenext",
    "--lib",
    "es2023,dom,dom.iterable",
)
TYPES = ("--declaration", "--emitDeclarationOnly", "--stripInternal")


def check() -> None:
    """Raises CalledProcessError if the client has type errors, which are printed."""
    subprocess.run([TSC, *CHECKS, "--noEmit", CLIENT / "ropewalk.js"], check=True)


def build(place: Path) -> Path:
    """Returns the package: a .tgz in `place`."""
    contents = place / "client"
    contents.mkdir(parents=True)
    for file in (CLIENT / "ropewalk.js", CLIENT / "package.json", CLIENT / "README.md", ROOT / "LICENSE"):
        shutil.copy2(file, contents)
    subprocess.run([TSC, *CHECKS, *TYPES, "--outDir", contents, CLIENT / "ropewalk.js"], check=True)
    subprocess.run(
        ["npm", "pack", "--silent", "--pack-destination", place], cwd=contents, check=True, stdout=subprocess.DEVNULL
    )
    shutil.rmtree(contents)
    [package] = place.glob("ropewalk-client-*.tgz")
    return package


if __name__ == "__main__":
    print(build(Path(sys.argv[1])))
