"""The connection of one node to NATS, and requests over it.

Invariant: a request is answered, raises `Unavailable` if it was not sent or had no receiver, or raises `Unanswered` if it was
sent and no answer arrived.
"""

import asyncio
import logging
from base64 import b64decode
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

import msgspec
from msgspec import Struct
from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription

from ropewalk.connections.nats import NatsAddress, open_nats
from ropewalk.model.errors import TooLarge, Unanswered, Unavailable

logger = logging.getLogger("ropewalk.nats")

MAX_ANSWER_BYTES = 512 * 1024
RETRY_SECONDS = 0.5
ASK_AGAIN_SECONDS = 0.2
NO_MESSAGE = 10037
WRONG_LAST_SEQUENCE = frozenset({10071, 10164})
NO_STREAM = 10059
NO_QUORUM = 503
"""The error code of JetStream if it has no quorum."""

Headers = Mapping[str, str]


class ApiError(Exception):
    """JetStream refused the request."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class Stored(Struct, frozen=True):
    """A message stored in JetStream."""

    subject: str
    seq: int
    data: bytes


async def _ignore() -> None:
    pass


class NatsLink:
    """`timeout`: of a request, in seconds."""

    def __init__(self, address: NatsAddress, name: str, timeout: float = 2.0) -> None:
        self._address = address
        self._name = name
        self.timeout = timeout
        self._client: Client | None = None
        self._collecting: dict[str, asyncio.Queue[Msg]] = {}
        self._inbox = ""
        self._requests = 0
        self._unanswered = "NATS does not answer"  # why the last request was not answered; "" if it was
        self._unwritten = ""  # the same for the last write: a server that is cut off still answers reads
        self.disconnected: Callable[[], Awaitable[None]] = _ignore
        self.reconnected: Callable[[], Awaitable[None]] = _ignore
        self.overrun: Callable[[], Awaitable[None]] = _ignore  # messages of a subscription were dropped here

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def problem(self) -> str:
        """Why NATS is unavailable, "" if it is available."""
        return self._unanswered or self._unwritten

    @property
    def max_batch_bytes(self) -> int:
        """Maximum payload bytes of one batch: half of a message, so that its overhead fits too."""
        return min(MAX_ANSWER_BYTES, self._client.max_payload // 2) if self._client is not None else MAX_ANSWER_BYTES

    @property
    def max_payload(self) -> int:
        """Maximum bytes of one message with its headers."""
        return self._client.max_payload if self._client is not None else 2 * MAX_ANSWER_BYTES

    async def open(self) -> None:
        """Connect; retries until a server answers."""
        failures = 0
        while self._client is None:
            try:
                async with asyncio.timeout(2 * self.timeout):
                    self._client = await open_nats(
                        self._address, self._name, self._reconnected, self._disconnected, self._failed
                    )
            except (OSError, errors.Error, TimeoutError) as error:
                failures += 1
                if str(error):  # a timeout has no text; keep the reason from the client
                    self._unanswered = f"NATS does not answer: {error}"
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "cannot connect to NATS; retrying", extra={"reason": self.problem})
                await asyncio.sleep(RETRY_SECONDS)
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._collect)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _reconnected(self) -> None:
        logger.info("reconnected to NATS")
        await self.reconnected()

    async def _disconnected(self) -> None:
        if self._client is not None:
            logger.warning("lost the connection to NATS; reconnecting")
            await self.disconnected()

    async def _failed(self, error: Exception) -> None:
        if not self.connected:
            self._unanswered = f"NATS does not answer: {error}".removesuffix(": ")
        if isinstance(error, errors.SlowConsumerError):
            logger.warning("a subscription overflowed; messages were dropped", extra={"subject": error.subject})
            await self.overrun()

    def _connected_client(self) -> Client:
        if self._client is None or not self._client.is_connected:
            raise Unavailable("NATS does not answer")
        return self._client

    # --- messages -----------------------------------------------------------------------------------------------------

    async def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Returns once the server has processed it. Raises `Unavailable`."""
        client = self._connected_client()
        try:
            subscription = await client.subscribe(subject, cb=callback)
            await self.flush()
        except errors.Error as error:
            raise Unavailable(f"NATS does not answer: {error}") from None
        return subscription

    async def flush(self) -> None:
        try:
            await self._connected_client().flush(timeout=max(1, round(self.timeout)))
        except (errors.Error, TimeoutError) as error:
            raise Unavailable(f"NATS does not answer: {error}") from None

    async def send(self, subject: str, payload: bytes, headers: Headers | None = None) -> None:
        """Send without waiting for an answer. Raises `Unavailable`."""
        try:
            await self._connected_client().publish(subject, payload, headers=None if headers is None else dict(headers))
        except errors.MaxPayloadError:
            raise TooLarge("the message is larger than NATS takes (max_payload)") from None
        except (errors.Error, OSError) as error:
            raise Unavailable(f"NATS does not answer: {error}") from None

    async def request(self, subject: str, payload: bytes, headers: Headers | None = None) -> Msg:
        """Raises `Unavailable` and `Unanswered`."""
        try:
            answer = await self._request(subject, payload, None if headers is None else dict(headers))
        except Unavailable as error:
            if self.connected or not self._unanswered:  # otherwise keep the reason from the client
                self._unanswered = str(error)
            raise
        self._unanswered = ""
        return answer

    async def _request(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> Msg:
        try:
            return await self._connected_client().request(subject, payload, self.timeout, headers=headers)
        except errors.NoRespondersError:
            raise Unavailable("JetStream is not available or has no leader") from None
        except errors.OutboundBufferLimitError:
            raise Unavailable("NATS does not answer") from None
        except errors.MaxPayloadError:
            raise TooLarge("the message is larger than NATS takes (max_payload)") from None
        except (errors.Error, TimeoutError, OSError):
            raise Unanswered(f"NATS gave no answer within {self.timeout:g} s") from None

    # --- JetStream ----------------------------------------------------------------------------------------------------

    async def publish(self, subject: str, payload: bytes, headers: Headers) -> int:
        """Store a message. Returns its sequence. Raises `ApiError` too."""
        try:
            sequence: int = self._checked(await self.request(subject, payload, headers))["seq"]
        except (Unavailable, ApiError):
            self._unwritten = self._unanswered or self._unwritten
            raise
        self._unwritten = ""
        return sequence

    async def api(self, subject: str, question: object = None) -> Any:
        answer = await self.request(f"$JS.API.{subject}", b"" if question is None else msgspec.json.encode(question))
        return self._checked(answer)

    def _checked(self, message: Msg) -> Any:
        answer = msgspec.json.decode(message.data)
        if error := answer.get("error"):
            refused = ApiError(error.get("err_code", 0), error.get("description", "refused"))
            if error.get("code") == NO_QUORUM:
                self._unanswered = str(refused)
            raise refused
        return answer

    async def last(self, jet: str, subject: str) -> Stored | None:
        """The last message of a subject, from the leader. Followers may lag behind."""
        return await self._get(jet, {"last_by_subj": subject})

    async def at(self, jet: str, sequence: int) -> Stored | None:
        return await self._get(jet, {"seq": sequence})

    async def following(self, jet: str, sequence: int, subject: str) -> Stored | None:
        """The first message of a subject at or after a sequence, from the leader."""
        return await self._get(jet, {"seq": sequence, "next_by_subj": subject})

    async def _get(self, jet: str, question: Mapping[str, object]) -> Stored | None:
        try:
            message = (await self.api(f"STREAM.MSG.GET.{jet}", question))["message"]
        except ApiError as error:
            if error.code == NO_MESSAGE:
                return None
            raise Unavailable(str(error)) from None
        return Stored(message["subject"], message["seq"], b64decode(message.get("data", "")))

    async def read(self, jet: str, sequence: int, subject: str, most: int, max_bytes: int = 0) -> tuple[list[Stored], bool]:
        """Messages of a subject from a sequence on, at most `most` and `max_bytes`, from any server; and whether there are
        more."""
        self._requests += 1
        key = str(self._requests)
        queue = self._collecting[key] = asyncio.Queue()
        bound = {"max_bytes": max_bytes} if max_bytes else {}
        question = msgspec.json.encode({"seq": sequence, "batch": most, "next_by_subj": subject, **bound})
        found: list[Stored] = []
        try:
            await self._connected_client().publish(f"$JS.API.DIRECT.GET.{jet}", question, reply=f"{self._inbox}.{key}")
            while True:
                message = await asyncio.wait_for(queue.get(), self.timeout)
                headers = message.headers or {}
                if "Status" in headers:
                    if headers["Status"] not in ("204", "404"):
                        raise Unavailable(f"JetStream does not answer: {headers.get('Description', headers['Status'])}")
                    return found, headers.get("Nats-Num-Pending", "0") != "0"
                found.append(Stored(headers["Nats-Subject"], int(headers["Nats-Sequence"]), message.data))
        except (errors.Error, TimeoutError, OSError):
            raise Unanswered(f"NATS gave no answer within {self.timeout:g} s") from None
        finally:
            del self._collecting[key]

    async def ask_all(self, subject: str, enough: Callable[[list[bytes]], bool], seconds: float) -> list[bytes]:
        """The answers of all subscribers of a subject, until they are enough or the time is over. Raises `Unavailable`."""
        self._requests += 1
        key = str(self._requests)
        queue = self._collecting[key] = asyncio.Queue()
        answers: list[bytes] = []
        try:
            async with asyncio.timeout(seconds):
                while not enough(answers):
                    await self._connected_client().publish(subject, b"", reply=f"{self._inbox}.{key}")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ASK_AGAIN_SECONDS):
                            while not enough(answers):
                                message = await queue.get()
                                if message.data:  # empty without subscribers
                                    answers.append(message.data)
        except TimeoutError:
            pass
        except (errors.Error, OSError) as error:
            raise Unavailable(f"NATS does not answer: {error}") from None
        finally:
            del self._collecting[key]
        return answers

    async def _collect(self, message: Msg) -> None:
        queue = self._collecting.get(message.subject.rpartition(".")[2])
        if queue is not None:
            queue.put_nowait(message)
