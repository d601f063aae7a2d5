"""An application asked over HTTP: a POST for each call, messages as JSON. Only 200 is an answer; redirects are not followed.

502, 503 and 504 come from a proxy before the application, or from a server without a free worker: it did not answer.
"""

import logging
import ssl
import time
from collections.abc import Iterator
from contextlib import contextmanager

import aiohttp
import msgspec
from yarl import URL

from ropewalk.adapters.apps.rpc.application import PROTOCOL, RpcApplication, UnknownMethod
from ropewalk.adapters.apps.rpc.breaker import Breaker
from ropewalk.adapters.apps.rpc.calls import ApplicationUnreachable, AskAgain, Calls
from ropewalk.adapters.apps.rpc.messages import M, Method, Q, RpcMessage, from_plain
from ropewalk.model.errors import ApplicationError, Unanswered, Unavailable, UserMistake
from ropewalk.model.nesting import TOO_DEEP, too_deep
from ropewalk.ports import Clock, Publisher

log = logging.getLogger("ropewalk.application")

MAX_ANSWER = 1 << 20
"""Bytes."""


class GatewayTimeout(AskAgain, Unanswered):
    """504: a proxy passed the call to the application and timed out. The application may still be working on it."""

    pause = 0.1


class HttpApplication(RpcApplication):
    """`url` is the base below which the methods are found. `tls_root_ca` is the path of the certificates to believe."""

    def __init__(
        self,
        url: str,
        secret: str,
        calls: Calls,
        *,
        restore: bool = False,
        tls_root_ca: str = "",
        clock: Clock = time.monotonic,
    ) -> None:
        super().__init__(calls, restore)
        self._url = _base(url, secret)
        self._shown = str(self._url.with_user(None).with_query(None))
        self._secret = secret
        self._tls = _trusting(tls_root_ca)
        self._breaker = Breaker(clock)
        self._http: aiohttp.ClientSession | None = None

    async def start(self, publisher: Publisher) -> None:
        # How many connections there are is for the calls to say. Compressed answers could be larger than they look.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "x-anycable-meta-protov": PROTOCOL}
        if self._secret:
            headers["Authorization"] = f"Bearer {self._secret}"
        self._http = aiohttp.ClientSession(
            connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        log.info("the application is asked over HTTP", extra={"url": self._shown})

    async def stop(self) -> None:
        http, self._http = self._http, None
        if http is not None:
            await http.close()

    @property
    def _started(self) -> bool:
        return self._http is not None

    def gauges(self) -> dict[str, float]:
        return {**super().gauges(), "app_circuit_open": float(self._breaker.open)}

    async def _ask(self, method: Method[Q, M], sid: str, request: Q, seconds: float) -> M:
        body = _encode(request)
        with self._circuit():
            return from_plain(await self._post(method.name.lower(), sid, body, seconds), method.response)

    @contextmanager
    def _circuit(self) -> Iterator[None]:
        """Lets a request through, or not, and learns from how it ended: whatever the application answers, it was reached."""
        ticket = self._breaker.enter()
        if ticket is None:
            raise Unavailable("the application could not be reached lately, and is left alone for some seconds")
        ok = None
        try:
            yield
            ok = True
        except ApplicationError:
            ok = True
            raise
        except Unavailable:
            ok = False
            raise
        finally:
            was_open = self._breaker.open
            self._breaker.leave(ticket, ok)
            self._say_if_changed(was_open)

    def _say_if_changed(self, was_open: bool) -> None:
        if self._breaker.open and not was_open:
            log.warning(
                "nearly every call to the application fails: it is left alone for some seconds", extra={"url": self._shown}
            )
        elif was_open and not self._breaker.open:
            log.info("calls to the application get through again", extra={"url": self._shown})

    async def _post(self, path: str, sid: str, body: bytes, seconds: float) -> object:
        if self._http is None:
            raise Unavailable("the connection to the application is closed")
        try:
            async with self._http.post(
                (self._url / path).with_query(self._url.query),
                data=body,
                headers={"x-anycable-meta-sid": sid},
                timeout=aiohttp.ClientTimeout(total=seconds),
                allow_redirects=False,
            ) as response:
                _check(response.status, path)
                return _decode(await _bounded(response))
        except TimeoutError:
            raise Unanswered(f"{self._shown} gave no answer in time") from None
        except aiohttp.ClientConnectionError as error:
            raise ApplicationUnreachable(f"{self._shown} cannot be reached: {error}") from None
        except aiohttp.ClientPayloadError:
            # It has done its work, so that to ask again would have it done twice.
            raise Unanswered(f"the answer of {self._shown} was cut off") from None
        except aiohttp.ClientError as error:
            raise ApplicationError(f"{self._shown} does not speak HTTP as we know it: {type(error).__name__}") from None


def _check(status: int, path: str) -> None:
    match status:
        case 200:
            return
        case 401:
            raise ApplicationError("unauthorized: the application does not know our secret (401)")
        case 400 | 422:
            raise ApplicationError(f"the application cannot read what it was asked ({status})")
        case 404:
            raise UnknownMethod(f"the application has no {path} (404)")
        case 502 | 503:
            raise ApplicationUnreachable(f"the application did not answer ({status})")
        case 504:
            raise GatewayTimeout("the application did not answer in time (504)")
        case _:
            raise ApplicationError(f"the application answered with the status {status}")


async def _bounded(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_ANSWER:
            raise ApplicationError(f"the application's answer is larger than {MAX_ANSWER} bytes")
    return bytes(body)


def _encode(message: RpcMessage) -> bytes:
    try:
        return msgspec.json.encode(message)
    except UnicodeError:
        raise ApplicationError("the call holds text that is not Unicode, which the application cannot be given") from None


def _decode(body: bytes) -> object:
    if too_deep(body):
        raise ApplicationError(f"the application's answer is {TOO_DEEP}")
    try:
        return msgspec.json.decode(body)
    except ValueError as error:
        raise ApplicationError(f"the application's answer cannot be read: {error}") from None


def _base(url: str, secret: str) -> URL:
    """Raises UserMistake, whose text shows no credentials."""
    try:
        base = URL(url)
    except ValueError:
        base = URL()
    if base.scheme not in ("http", "https") or not base.host:
        raise UserMistake("the application's URL must look like http://host:port/path or https://host/path")
    if base.user is not None and secret:
        raise UserMistake("the application's URL has a user and there is a secret too, but only one of them can be sent")
    return base


def _trusting(path: str) -> ssl.SSLContext | bool:
    if not path:
        return True
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise UserMistake(f"the root certificates {path} cannot be read: {error.strerror}") from None
