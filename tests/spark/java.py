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


START_AND_RUN_SECONDS = 600.0
"""For a JVM to start and do a little. A driver of ours gives way to everything else that runs here (`spark.ropewalk.nice`), and
what other tests do at the same time keeps the cores busy: what takes ten seconds by itself may take minutes."""


def java_home(directory: Path) -> str:
    """For JAVA_HOME. The launchers ask for a module that slim Javas lack and Spark can do without."""
    program = directory / "java" / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True)
        program.write_text(_SCRIPT.format(java=find_java()))
        program.chmod(0o755)
    return str(program.parents[1])
