"""Real servers in front of a backend, for tests of what asks applications over gRPC and HTTP. On a free port of 127.0.0.1.

A backend (`tests.rpc_backend`) may also raise Refusal for a failure of the wire, and NotImplementedError for a method that it
does not have.
"""

import json
import ssl
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

import grpc
import msgspec
from aiohttp import web

from ropewalk.adapters.apps.rpc import messages as wire
from ropewalk.adapters.apps.rpc.grpc import decode_protobuf, encode_protobuf
from tests.rpc_backend import Backend, respond

HOST = "127.0.0.1"
CERTIFICATE, KEY = (Path(__file__).parent / "fixtures" / name for name in ("tls_cert.pem", "tls_key.pem"))

_METHODS: tuple[wire.Method[Any, Any], ...] = (wire.CONNECT, wire.COMMAND, wire.DISCONNECT, wire.RESTORE)


class Refusal(Exception):
    """The wire itself fails: a code of gRPC, a status of HTTP."""

    def __init__(self, code: str = "UNKNOWN", status: int = 500) -> None:
        super().__init__(code)
        self.code = code
        self.status = status


S = TypeVar("S", bound="_Server")


class _Server:
    """`seen` holds the metadata or headers of every request, with the method under its name."""

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        self.port = 0
        self.seen: list[dict[str, str]] = []

    async def start(self) -> None:
        """Again after a stop it is on the same port."""
        raise NotImplementedError

    async def stop(self) -> None:
        """At once: what is under way is cut off."""
        raise NotImplementedError

    async def __aenter__(self: S) -> S:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()


class GrpcServer(_Server):
    """With `tls` it shows the certificate of the fixtures."""

    def __init__(self, backend: Backend, tls: bool = False) -> None:
        super().__init__(backend)
        self._tls = tls
        self._server: Any = None

    @property
    def host(self) -> str:
        return f"{HOST}:{self.port}"

    async def start(self) -> None:
        # Two servers on one port would each get some of the calls.
        self._server = grpc.aio.server(options=[("grpc.so_reuseport", 0)])
        handlers = {method.name: grpc.unary_unary_rpc_method_handler(self._handler(method)) for method in _METHODS}
        self._server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("anycable.RPC", handlers),))
        address = f"{HOST}:{self.port}"
        if self._tls:
            credentials = grpc.ssl_server_credentials([(KEY.read_bytes(), CERTIFICATE.read_bytes())])
            self.port = self._server.add_secure_port(address, credentials)
        else:
            self.port = self._server.add_insecure_port(address)
        await self._server.start()

    async def stop(self) -> None:
        await self._server.stop(None)

    def _handler(self, method: wire.Method[Any, Any]) -> Any:
        async def handle(body: bytes, context: Any) -> bytes:
            metadata = dict(context.invocation_metadata())
            self.seen.append({**metadata, "method": method.name})
            try:
                request = decode_protobuf(body, method.request)
                return encode_protobuf(await respond(self.backend, request, metadata.get("sid", "")))
            except Refusal as refusal:
                await context.abort(getattr(grpc.StatusCode, refusal.code), "refused")
            except NotImplementedError:
                await context.abort(grpc.StatusCode.UNIMPLEMENTED, "no such method")
            raise AssertionError("abort raises")

        return handle


class HttpServer(_Server):
    """With a `secret` it answers 401 to whoever does not bring it; with `tls` it shows the certificate of the fixtures."""

    def __init__(self, backend: Backend, secret: str = "", tls: bool = False) -> None:
        super().__init__(backend)
        self._secret = secret
        self._tls: ssl.SSLContext | None = None
        if tls:
            self._tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self._tls.load_cert_chain(CERTIFICATE, KEY)
        self._runner: web.AppRunner | None = None

    @property
    def url(self) -> str:
        return f"{'https' if self._tls else 'http'}://{HOST}:{self.port}/_anycable"

    async def start(self) -> None:
        application = web.Application()
        application.add_routes([web.post(f"/_anycable/{method.name.lower()}", self._handler(method)) for method in _METHODS])
        self._runner = web.AppRunner(application, shutdown_timeout=0.01)
        await self._runner.setup()
        await web.TCPSite(self._runner, HOST, self.port, ssl_context=self._tls).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        if self._runner is not None:
            await self._runner.cleanup()

    def _handler(self, method: wire.Method[Any, Any]) -> Any:
        async def handle(request: web.Request) -> web.Response:
            self.seen.append({**_lower(request.headers), "method": method.name})
            if self._secret and request.headers.get("Authorization") != f"Bearer {self._secret}":
                return web.Response(status=401)
            asked = msgspec.convert(json.loads(await request.read()), method.request)
            try:
                response = await respond(self.backend, asked, request.headers.get("x-anycable-meta-sid", ""))
            except Refusal as refusal:
                return web.Response(status=refusal.status)
            except NotImplementedError:
                return web.Response(status=404)
            return web.Response(body=msgspec.json.encode(response), content_type="application/json")

        return handle


def _lower(headers: Mapping[str, str]) -> dict[str, str]:
    return {name.lower(): value for name, value in headers.items()}
