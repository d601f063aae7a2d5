"""A Java that Spark's own launchers accept, whichever one this machine has."""

from pathlib import Path

from ropewalk.pipeline.jvm import find_java

# The word is dropped from the arguments; all others stay as they are.
_SCRIPT = """#!/bin/bash
for word do
    shift
    [[ $word = --add-modules=jdk.incubator.vector ]] || set -- "$@" "$word"
done
exec {java} "$@"
"""


def java_home(directory: Path) -> str:
    """For JAVA_HOME. The launchers ask for a module that slim Javas lack and Spark can do without."""
    program = directory / "java" / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True)
        program.write_text(_SCRIPT.format(java=find_java()))
        program.chmod(0o755)
    return str(program.parents[1])
