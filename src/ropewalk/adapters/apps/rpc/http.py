"""An application behind HTTP: a POST for each call, with JSON messages. Success is 200 only; redirects are not followed.

502, 503 and 504 come from a proxy before the application, or from a server without a free worker: they are retried.
"""

import logging
import ssl
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from enum import Enum, auto

import aiohttp
import msgspec
from yarl import URL

from ropewalk.adapters.apps.rpc.application import PROTOCOL, RpcApplication, UnknownMethod
from ropewalk.adapters.apps.rpc.calls import ApplicationUnreachable, Calls, Retryable
from ropewalk.adapters.apps.rpc.messages import M, Method, Q, RpcMessage, from_plain
from ropewalk.model.errors import ApplicationError, Unanswered, Unavailable, UserMistake
from ropewalk.model.nesting import TOO_DEEP, is_too_deep
from ropewalk.ports import Clock, Publisher


class _State(Enum):
    CLOSED = auto()
    OPEN = auto()
    HALF_OPEN = auto()


class Breaker:
    """Opens when too many requests fail.

    Args:
        window: seconds over which requests are counted.
        min_requests: within the window, below which it never opens.
        percent: of failed requests at which it opens.
        pause: seconds for which it stays open.
        trials: requests that are let through after the pause. One failure opens it again, their success closes it.
    """

    def __init__(
        self, clock: Clock, *, window: int = 10, min_requests: int = 10, percent: int = 80, pause: float = 5.0, trials: int = 5
    ) -> None:
        self._clock = clock
        self._recent = _Recent(window)
        self._min_requests = min_requests
        self._percent = percent
        self._pause = pause
        self._trials = trials
        self._state = _State.CLOSED
        self._ticket = 0
        self._opened_at = 0.0
        self._admitted = 0
        self._succeeded = 0

    @property
    def open(self) -> bool:
        """True until the trials have succeeded."""
        return self._state is not _State.CLOSED

    def enter(self) -> int | None:
        """Returns a ticket for `leave`, or None if the request must not be made."""
        if self._state is _State.OPEN and self._clock() >= self._opened_at + self._pause:
            self._become(_State.HALF_OPEN)
        if self._state is _State.OPEN or (self._state is _State.HALF_OPEN and self._admitted >= self._trials):
            return None
        self._admitted += 1
        return self._ticket

    def leave(self, ticket: int, ok: bool | None) -> None:
        """Reports the result; `ok` is None for a cancelled request."""
        if ticket != self._ticket:
            return
        match ok:
            case None:
                self._admitted -= 1
            case True:
                self._success()
            case False:
                self._failure()

    def _success(self) -> None:
        self._succeeded += 1
        if self._state is _State.CLOSED:
            self._recent.add(int(self._clock()), failed=False)
        elif self._succeeded >= self._trials:
            self._become(_State.CLOSED)

    def _failure(self) -> None:
        if self._state is _State.CLOSED:
            self._recent.add(int(self._clock()), failed=True)
            requests, failures = self._recent.counts()
            if requests < self._min_requests or 100 * failures < self._percent * requests:
                return
        self._opened_at = self._clock()
        self._become(_State.OPEN)

    def _become(self, state: _State) -> None:
        self._state = state
        self._ticket += 1
        self._admitted = self._succeeded = 0
        self._recent.clear()


class _Recent:
    """Requests and failures of the last seconds, including the current one, one sum per second: memory is bounded."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._sums: deque[tuple[int, int, int]] = deque()

    def add(self, second: int, failed: bool) -> None:
        while self._sums and self._sums[0][0] <= second - self._seconds:
            self._sums.popleft()
        requests, failures = 0, 0
        if self._sums and self._sums[-1][0] == second:
            _, requests, failures = self._sums.pop()
        self._sums.append((second, requests + 1, failures + failed))

    def counts(self) -> tuple[int, int]:
        return sum(requests for _, requests, _ in self._sums), sum(failures for _, _, failures in self._sums)

    def clear(self) -> None:
        self._sums.clear()


log = logging.getLogger("ropewalk.application")

MAX_RESPONSE_BYTES = 1 << 20


class GatewayTimeout(Retryable, Unanswered):
    """504: a proxy passed the call to the application and timed out. The application may still be working on it."""

    pause = 0.1


class HttpApplication(RpcApplication):
    """An application at a URL.

    Args:
        url: the base URL of the methods.
        secret: the bearer token of every call; "" for none.
        restore: whether restored sessions are reported to it.
        tls_root_ca: path of the certificates to trust; "" for those of the system.
    """

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
        self._url = _parse_url(url, secret)
        self._shown = str(self._url.with_user(None).with_query(None))
        self._secret = secret
        self._tls = _tls_context(tls_root_ca)
        self._breaker = Breaker(clock)
        self._http: aiohttp.ClientSession | None = None

    async def start(self, publisher: Publisher) -> None:
        # `Calls` limits the connections. Compressed responses could exceed the size limit.
        connector = aiohttp.TCPConnector(limit=0, ssl=self._tls)
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity", "x-anycable-meta-protov": PROTOCOL}
        if self._secret:
            headers["Authorization"] = f"Bearer {self._secret}"
        self._http = aiohttp.ClientSession(
            connector=connector, headers=headers, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
        )
        log.info("calling the application over HTTP", extra={"url": self._shown})

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
        """Admits a request, or refuses it, and records its result. Any response of the application is a success."""
        ticket = self._breaker.enter()
        if ticket is None:
            raise Unavailable("circuit breaker open: nearly all recent calls to the application failed")
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
            self._log_change(was_open)

    def _log_change(self, was_open: bool) -> None:
        if self._breaker.open and not was_open:
            log.warning("circuit breaker open: nearly all calls to the application fail", extra={"url": self._shown})
        elif was_open and not self._breaker.open:
            log.info("circuit breaker closed: calls to the application succeed again", extra={"url": self._shown})

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
                _check_status(response.status, path)
                return _decode(await _read_body(response))
        except TimeoutError:
            raise Unanswered(f"{self._shown} did not respond in time") from None
        except aiohttp.ClientConnectionError as error:
            raise ApplicationUnreachable(f"{self._shown} cannot be reached: {error}") from None
        except aiohttp.ClientPayloadError:
            # Not retryable: the application has processed the call.
            raise Unanswered(f"the response of {self._shown} is incomplete") from None
        except aiohttp.ClientError as error:
            raise ApplicationError(f"invalid HTTP response from {self._shown}: {type(error).__name__}") from None


def _check_status(status: int, path: str) -> None:
    match status:
        case 200:
            return
        case 401:
            raise ApplicationError("unauthorized: the application rejects the secret of the server (401)")
        case 400 | 422:
            raise ApplicationError(f"the application rejects the call as malformed ({status})")
        case 404:
            raise UnknownMethod(f"the application has no {path} (404)")
        case 502 | 503:
            raise ApplicationUnreachable(f"the application did not respond ({status})")
        case 504:
            raise GatewayTimeout("the application did not respond in time (504)")
        case _:
            raise ApplicationError(f"the application responded with status {status}")


async def _read_body(response: aiohttp.ClientResponse) -> bytes:
    body = bytearray()
    async for chunk in response.content.iter_any():
        body += chunk
        if len(body) > MAX_RESPONSE_BYTES:
            raise ApplicationError(f"the application's response is larger than {MAX_RESPONSE_BYTES} bytes")
    return bytes(body)


def _encode(message: RpcMessage) -> bytes:
    try:
        return msgspec.json.encode(message)
    except UnicodeError:
        raise ApplicationError("the call contains text that is not Unicode and cannot be sent to the application") from None


def _decode(body: bytes) -> object:
    if is_too_deep(body):
        raise ApplicationError(f"the application's response is {TOO_DEEP}")
    try:
        return msgspec.json.decode(body)
    except ValueError as error:
        raise ApplicationError(f"the application's response cannot be read: {error}") from None


def _parse_url(url: str, secret: str) -> URL:
    """Raises UserMistake, without credentials in its text."""
    try:
        base = URL(url)
    except ValueError:
        base = URL()
    if base.scheme not in ("http", "https") or not base.host:
        raise UserMistake("the application's URL must look like http://host:port/path or https://host/path")
    if base.user is not None and secret:
        raise UserMistake("the application's URL has a user and a secret is set, too: only one of them can be sent")
    return base


def _tls_context(path: str) -> ssl.SSLContext | bool:
    if not path:
        return True
    try:
        return ssl.create_default_context(cafile=path)
    except OSError as error:
        raise UserMistake(f"the root certificates {path} cannot be read: {error.strerror}") from None
