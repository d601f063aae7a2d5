"""The chat's application: serves the page and publishes what people write.

Browsers read from Ropewalk and write to the application, which decides what to publish.
"""

import argparse
import http.client
import json
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

PAGE = Path(__file__).with_name("index.html")
STREAM = "chat/tutorial"
MAX_BODY = 65536


def publish(ropewalk: str, message: dict[str, str]) -> int:
    """Returns Ropewalk's status; 201 means that the message has its place in the stream."""
    connection = http.client.HTTPConnection(urlsplit(ropewalk).netloc, timeout=5)
    try:
        body = json.dumps({"stream": STREAM, "data": message})
        connection.request("POST", "/api/publish", body, {"Content-Type": "application/json"})
        return connection.getresponse().status
    finally:
        connection.close()


class Chat(BaseHTTPRequestHandler):
    ropewalk = ""

    def do_GET(self) -> None:
        if self.path == "/":
            page = PAGE.read_text().replace("{{ropewalk}}", self.ropewalk).replace("{{stream}}", STREAM)
            self._answer(200, page, "text/html; charset=utf-8")
        else:
            self._answer(404, "not here", "text/plain")

    def do_POST(self) -> None:
        try:
            said = json.loads(self.rfile.read(min(int(self.headers["Content-Length"]), MAX_BODY)))
            # Accepts any name. Your site takes the name from its login.
            message = {"name": str(said["name"])[:40], "text": str(said["text"])[:2000]}
        except (KeyError, TypeError, ValueError):
            self._answer(422, "a message has a name and a text", "text/plain")
            return
        self._answer(publish(self.ropewalk, message), "", "text/plain")

    def _answer(self, status: int, text: str, kind: str) -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the terminal is for the address."""


def main() -> None:
    parser = argparse.ArgumentParser(description="a chat on top of Ropewalk")
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--ropewalk", default="http://127.0.0.1:8080", help="where `ropewalk serve --public` listens")
    wanted = parser.parse_args()
    Chat.ropewalk = wanted.ropewalk.rstrip("/")
    server = ThreadingHTTPServer(("127.0.0.1", wanted.port), Chat)
    print(f"chat listening on http://127.0.0.1:{server.server_port}", flush=True)
    try:
        server.serve_forever()
    except KeyboardInterrupt:
        server.server_close()


if __name__ == "__main__":
    main()
