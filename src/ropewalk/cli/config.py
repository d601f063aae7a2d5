"""`ropewalk config`: the effective settings and their sources. Of secrets it prints only whether they are set."""

import argparse
import os

from ropewalk.app.settings import help_text, load
from ropewalk.app.settings.reference import as_markdown, as_table, as_toml

SUMMARY = "print the effective settings and their sources"
FORMATS = ("table", "toml", "markdown")


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="ropewalk config", add_help=False, allow_abbrev=False)
    parser.add_argument("--format", choices=FORMATS, default="table")
    parser.add_argument("-h", "--help", action="store_true")
    arguments, flags = parser.parse_known_args(argv)
    if arguments.help:
        print(help_text("ropewalk config [--format FORMAT] [SETTINGS]", SUMMARY, _FORMAT_HELP))
    else:
        print(_format(arguments.format, flags), end="")
    return 0


_FORMAT_HELP = """\
  --format table      every setting, its value and its source (the default)
  --format toml       the same as a settings file, without the secrets
  --format markdown   the reference page of all settings"""


def _format(format: str, flags: list[str]) -> str:
    settings = load(flags, os.environ)
    match format:
        case "toml":
            return as_toml(settings)
        case "markdown":
            return as_markdown()
        case _:
            return as_table(settings)
