"""Malformed input over TCP and HTTP: invalid requests, bad upgrades, and requests that the endpoints refuse."""

import json

from tests.scenarios.malformed import STREAM, Case, http, request
from tests.tcp import upgrade_request

DEPTH = 20_000
PUBLISH_LIMIT = 1 << 20

CONNECTIONS: dict[str, Case] = {
    "tcp-garbage": request(b"\x00\x01\xff\xfe what is this?\r\n\r\n"),
    "tcp-silence": request(b""),
    "tcp-no-frame": request(b"\x10\0\0\0garbage garbage!"),
    "tcp-frame-too-long": request(b"\xff\xff\xff\x7f\x08\0\0\0BRK1"),
    "tcp-half-a-head": request(b"GET /health HTTP/1.1\r\nHost: loc"),
    "tcp-head-too-long": request(b"GET /health HTTP/1.1\r\n" + b"x: y\r\n" * 4000 + b"\r\n"),
    "tcp-endless-head": request(b"GET /health HTTP/1.1\r\nx: " + b"." * 20_000),
    "tcp-header-too-long": request(b"GET /health HTTP/1.1\r\nx: " + b"." * 10_000 + b"\r\n\r\n"),
    "tcp-http-version-unknown": request(b"GET /health HTTP/9.9\r\nhost: x\r\n\r\n"),
    "tcp-method-unknown": request(b"EXPLODE /health HTTP/1.1\r\nhost: x\r\n\r\n"),
    "tcp-path-unknown": request(b"GET /nowhere HTTP/1.1\r\nhost: x\r\n\r\n"),
    "tcp-length-negative": request(b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ncontent-length: -5\r\n\r\n"),
    "tcp-length-twice": request(b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ncontent-length: 2\r\ncontent-length: 3\r\n\r\n{}"),
    "tcp-chunk-size-nonsense": request(
        b"POST /_broadcast HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nnonsense\r\n{}\r\n0\r\n\r\n"
    ),
    "cable-without-upgrade": request(b"GET /cable HTTP/1.1\r\nhost: x\r\n\r\n"),
    "upgrade-to-something-else": request(upgrade_request(upgrade="h2c")),
    "upgrade-wrong-path": request(upgrade_request(path="/nowhere")),
    "upgrade-path-no-url": request(upgrade_request(path="//[cable")),
    "upgrade-by-post": request(upgrade_request().replace(b"GET", b"POST", 1)),
    "upgrade-http-1-0": request(upgrade_request().replace(b"HTTP/1.1", b"HTTP/1.0", 1)),
    "upgrade-request-line-cut": request(upgrade_request().replace(b" HTTP/1.1", b"", 1)),
    "upgrade-header-without-colon": request(upgrade_request().replace(b"host: ", b"host ", 1)),
    "upgrade-without-connection": request(upgrade_request(connection=None)),
    "upgrade-without-key": request(upgrade_request(sec_websocket_key=None)),
    "upgrade-key-too-short": request(upgrade_request(sec_websocket_key="c2hvcnQ=")),
    "upgrade-without-version": request(upgrade_request(sec_websocket_version=None)),
    "upgrade-with-frames-ahead": request(upgrade_request() + b"." * (4 * 1024 + 1)),
    "upgrade-version-unknown": request(upgrade_request(sec_websocket_version="99")),
}

GOOD = {"stream": STREAM, "data": "1"}


def _publish(body: object, **headers: str) -> Case:
    return http("POST", "/_broadcast", body, **headers)


PUBLISHING: dict[str, Case] = {
    "publish-by-get": http("GET", "/_broadcast"),
    "publish-empty": _publish(b""),
    "publish-not-json": _publish(b"stream=x&data=y"),
    "publish-not-utf8": _publish(b'{"stream":"\xff","data":"1"}'),
    "publish-number": _publish(7),
    "publish-null": _publish(b"null"),
    "publish-without-stream": _publish({"data": "1"}),
    "publish-stream-empty": _publish({"stream": "", "data": "1"}),
    "publish-stream-number": _publish({"stream": 1, "data": "1"}),
    "publish-stream-too-long": _publish({"stream": "." * 513, "data": "1"}),
    "publish-without-data": _publish({"stream": STREAM}),
    "publish-data-nested-too-deep": _publish({"stream": STREAM, "data": "[" * DEPTH + "]" * DEPTH}),
    "publish-nested-too-deep": _publish(b"[" * DEPTH + b"]" * DEPTH),
    "publish-unknown-key-nested-too-deep": _publish(b'{"stream":"x","data":"1","x":' + b"[" * 200 + b"]" * 200 + b"}"),
    "publish-data-a-level-too-deep": _publish({"stream": STREAM, "data": "[" * 129 + "]" * 129}),
    "publish-meta-wrong": _publish({**GOOD, "meta": {"transient": "yes"}}),
    "publish-uid-number": _publish({**GOOD, "uid": 1}),
    "publish-uid-too-long": _publish({**GOOD, "uid": "." * 257}),
    "publish-idempotency-key-too-long": _publish(GOOD, Idempotency_Key="." * 257),
    "publish-batch-empty": _publish([]),
    "publish-batch-too-long": _publish([GOOD] * 1001),
    "publish-batch-with-one-bad": _publish([GOOD, {"stream": STREAM}, GOOD]),
    "publish-batch-with-command": _publish([GOOD, {"command": "disconnect", "payload": {"identifier": "1"}}]),
    "publish-unknown-command": _publish({"command": "explode", "payload": {"identifier": "1"}}),
    "publish-disconnect-nobody": _publish({"command": "disconnect", "payload": {}}),
    "publish-too-large": _publish({"stream": STREAM, "data": "." * PUBLISH_LIMIT}),
    "publish-not-really-gzip": _publish(b"not gzip at all", Content_Encoding="gzip"),
    "api-publish-not-json": http("POST", "/api/publish", b"nonsense"),
}

READING: dict[str, Case] = {
    "rest-limit-zero": http("GET", "/api/streams?limit=0"),
    "rest-limit-text": http("GET", "/api/streams?limit=all"),
    "rest-limit-too-large": http("GET", "/api/streams?limit=100000"),
    "rest-after-not-utf8": request(b"GET /api/streams?after=\xff HTTP/1.1\r\nhost: x\r\n\r\n"),
    "rest-history-after-negative": http("GET", "/api/streams/malformed/history?after=-1"),
    "rest-history-unknown-stream": http("GET", "/api/streams/malformed%2Fnever/history"),
    "rest-presence-limit-text": http("GET", "/api/presence/malformed/users?limit=x"),
    "sse-by-put": http("PUT", "/events"),
    "sse-without-stream": http("GET", "/events"),
    "sse-stream-not-utf8": request(b"GET /events?stream=\xff HTTP/1.1\r\nhost: x\r\n\r\n"),
    "sse-stream-too-long": http("GET", f"/events?stream={'.' * 513}"),
    "sse-identifier-not-json": http("GET", "/events?identifier=nonsense"),
    "sse-since-text": http("GET", "/events?stream=x&history_since=today"),
    "sse-last-event-id-nonsense": http("GET", "/events?stream=x", Last_Event_ID="nonsense"),
    "sse-last-event-id-negative": http("GET", "/events?stream=x", Last_Event_ID="-1/epoch/x"),
    "sse-last-event-id-enormous": http("GET", "/events?stream=x", Last_Event_ID=f"{2**63}/epoch/x"),
    "sse-last-event-id-cut": http("GET", "/events?stream=x", Last_Event_ID=";1/epoch/x;2/ep"),
    "sse-last-event-id-too-long": http("GET", "/events?stream=x", Last_Event_ID="1/epoch/" + "x" * 8000),
    "sse-body-empty": http("POST", "/events", b""),
    "sse-body-not-json": http("POST", "/events", b"nonsense"),
    "sse-body-other-command": http("POST", "/events", b'{"command":"ping"}'),
    "sse-body-too-many": http("POST", "/events", b'{"command":"subscribe","identifier":"x"}\n' * 257),
    "sse-body-nested-too-deep": http(
        "POST", "/events", b'{"command":"subscribe","identifier":"x","x":' + b"[" * 1000 + b"]" * 1000 + b"}"
    ),
    "sse-body-too-large": http("POST", "/events", json.dumps({"command": "subscribe", "identifier": "." * 70_000}).encode()),
}
