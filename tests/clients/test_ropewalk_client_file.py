"""The file of the JavaScript client: its size and types, the tests of its inner parts, how it is served and published."""

import gzip
import json
import subprocess
import urllib.error
import urllib.request
from http.client import HTTPResponse
from pathlib import Path

import pytest

import ropewalk
from distribution.npm_package import CLIENT, TSC, build, check
from tests.server import RunningServer, running_server

HERE = Path(__file__).parent
SCRIPT = CLIENT / "ropewalk.js"
MAX_GZIPPED_BYTES = 10 * 1024

USER = """\
import { connect, RopewalkError, type Gap, type Position, type Subscription } from "@ropewalk/client";

const client = connect("https://example.com", { token: async () => "token" });
const chat: Subscription<{ text: string }> = client.subscribe("chat/42", { from: { last: 50 }, resume: sessionStorage });
const off: () => void = chat.on("message", ({ data, position }) => console.log(data.text.length, position.offset));
chat.on("gap", (gap: Gap) => console.log(gap.missed ?? 0));
chat.on("presence", () => chat.presence.members.map(({ id }) => id));
client.on("status", ({ state }) => state === "online" && off());
for await (const item of chat) {
  if (item.gap) console.log(item.gap.reason);
  else console.log(item.data.text, item.position satisfies Position);
}
// @ts-expect-error there is no such state
client.state === "lost";
// @ts-expect-error there is no such start
client.subscribe("chat/42", { from: "end" });
// @ts-expect-error not for programs
client._send("ping");
client.channel("Chat", { room: 1 }).perform("speak").catch((error: RopewalkError) => error.code);
"""


def test_the_client_has_at_most_ten_kilobytes_gzipped() -> None:
    assert len(gzip.compress(SCRIPT.read_bytes(), 9)) <= MAX_GZIPPED_BYTES


def test_the_package_has_the_version_and_license_of_the_server() -> None:
    package = json.loads((CLIENT / "package.json").read_text())
    assert (package["version"], package["license"]) == (ropewalk.__version__, "MIT")


@pytest.mark.needs_node
def test_typescript_finds_no_error_in_the_client() -> None:
    check()


@pytest.mark.needs_node
def test_positions_of_a_subscription() -> None:
    done = subprocess.run(["node", "--test", "ropewalk_track.test.js"], cwd=HERE, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.needs_node
@pytest.mark.tier("all")
def test_the_package_works_in_an_empty_typescript_project(tmp_path: Path) -> None:
    package = build(tmp_path / "built")
    project = tmp_path / "project"
    project.mkdir()
    (project / "package.json").write_text('{"type": "module"}')
    (project / "user.ts").write_text(USER)
    run = {"cwd": project, "check": True, "capture_output": True, "text": True}
    subprocess.run(["npm", "install", "--offline", "--no-audit", "--no-fund", str(package)], **run)  # type: ignore[call-overload]
    installed = project / "node_modules" / "@ropewalk" / "client"
    assert {path.name for path in installed.iterdir()} == {
        "ropewalk.js",
        "ropewalk.d.ts",
        "package.json",
        "README.md",
        "LICENSE",
    }
    assert (installed / "ropewalk.js").read_bytes() == SCRIPT.read_bytes()
    options = ("--noEmit", "--strict", "--target", "es2022", "--module", "nodenext", "--lib", "es2023,dom,dom.iterable")
    checked = subprocess.run([TSC, *options, "user.ts"], cwd=project, capture_output=True, text=True, check=False)
    assert checked.stdout == ""
    code = 'const { connect } = await import("@ropewalk/client"); console.log(typeof connect)'
    assert subprocess.run(["node", "-e", code], **run).stdout == "function\n"  # type: ignore[call-overload]


@pytest.mark.parametrize(
    "flags", [(), pytest.param(("--workers", "2"), marks=pytest.mark.tier("all"))], ids=["one process", "workers"]
)
def test_every_server_serves_the_client(flags: tuple[str, ...]) -> None:
    with running_server("--secret", "of this test", *flags) as server:
        with fetch(server) as answer:
            assert answer.read() == SCRIPT.read_bytes()
            assert answer.headers["Content-Type"] == "text/javascript; charset=utf-8"
            assert answer.headers["Cache-Control"] == "public, max-age=3600"
            assert answer.headers["Access-Control-Allow-Origin"] == "*"
        with pytest.raises(urllib.error.HTTPError) as unchanged:
            fetch(server, answer.headers["ETag"])
        assert unchanged.value.status == 304
        unchanged.value.close()
        with fetch(server, '"another"') as answer:
            assert answer.status == 200


def fetch(server: RunningServer, etag: str = "") -> HTTPResponse:
    request = urllib.request.Request(f"{server.url}/ropewalk.js", headers={"If-None-Match": etag} if etag else {})
    answer: HTTPResponse = urllib.request.urlopen(request)
    return answer
