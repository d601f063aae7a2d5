"""A Java for Spark's own launchers, and time limits for tests that start a JVM."""

from pathlib import Path

from ropewalk.pipeline.jvm import find_java

# Slim Javas lack this module, and Spark does not need it. Fast compilation matters more than fast code here.
_SCRIPT = """#!/bin/bash
for word do
    shift
    [[ $word = --add-modules=jdk.incubator.vector ]] || set -- "$@" "$word"
done
exec {java} -XX:TieredStopAtLevel=1 -XX:+UseSerialGC "$@"
"""


START_AND_RUN_SECONDS = 600.0
"""For a JVM to start and run a small job. A driver has a lower priority (`spark.ropewalk.nice`) than the tests beside it: ten
seconds on an idle machine may be minutes here."""

PROCESS_TIMEOUT = 900
"""Seconds for a case that starts a JVM of its own."""

FAST_START = """
[pipeline.spark]
"spark.ropewalk.nice" = "1"
"spark.driver.extraJavaOptions" = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""
"""A settings file for runs in a process of their own: beside other tests they would wait for minutes otherwise."""


def java_home(directory: Path) -> str:
    """For JAVA_HOME. The launchers request a module that slim Javas lack."""
    program = directory / "java" / "bin" / "java"
    if not program.exists():
        program.parent.mkdir(parents=True)
        program.write_text(_SCRIPT.format(java=find_java()))
        program.chmod(0o755)
    return str(program.parents[1])
