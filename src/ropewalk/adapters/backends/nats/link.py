"""The connection of one node to NATS, and requests over it.

Invariant: a request ends as answered, as `Unavailable` when nothing was sent or nobody was there to hear it, or as `Unanswered`
when it was sent and no answer came.
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
NOT_NOW = 503
"""The code of an answer that says nothing but that JetStream cannot work, as when most of its servers are gone."""

Headers = Mapping[str, str]


class ApiError(Exception):
    """JetStream heard the request and refused it."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text} ({code})")
        self.code = code


class Stored(Struct, frozen=True):
    """A message as JetStream has it."""

    subject: str
    seq: int
    data: bytes


async def _nothing() -> None:
    pass


class NatsLink:
    """`timeout`: seconds for one answer."""

    def __init__(self, address: NatsAddress, name: str, timeout: float = 2.0) -> None:
        self._address = address
        self._name = name
        self.timeout = timeout
        self._client: Client | None = None
        self._collecting: dict[str, asyncio.Queue[Msg]] = {}
        self._inbox = ""
        self._requests = 0
        self._unanswered = "NATS does not answer"  # why the last request was not answered; "" if it was
        self._unwritten = ""  # the same of the last write: a server without the others still answers what it knows itself
        self.disconnected: Callable[[], Awaitable[None]] = _nothing
        self.reconnected: Callable[[], Awaitable[None]] = _nothing
        self.overrun: Callable[[], Awaitable[None]] = _nothing  # messages of a subscription were dropped here

    @property
    def connected(self) -> bool:
        return self._client is not None and self._client.is_connected

    @property
    def problem(self) -> str:
        """Why NATS cannot be relied on now; "" if it can."""
        return self._unanswered or self._unwritten

    @property
    def most_bytes(self) -> int:
        """Of payloads that go into one message: half of what the server takes, so that what is around them fits too."""
        return min(MAX_ANSWER_BYTES, self._client.max_payload // 2) if self._client is not None else MAX_ANSWER_BYTES

    @property
    def max_payload(self) -> int:
        """Bytes of one message with its headers."""
        return self._client.max_payload if self._client is not None else 2 * MAX_ANSWER_BYTES

    async def open(self) -> None:
        """Until a server answers, for ever."""
        failures = 0
        while self._client is None:
            try:
                async with asyncio.timeout(2 * self.timeout):
                    self._client = await open_nats(
                        self._address, self._name, self._reconnected, self._disconnected, self._failed
                    )
            except (OSError, errors.Error, TimeoutError) as error:
                failures += 1
                if str(error):  # a timeout says less than what the client told meanwhile
                    self._unanswered = f"NATS does not answer: {error}"
                level = logging.WARNING if failures == 1 else logging.DEBUG
                logger.log(level, "NATS is not reached; trying again", extra={"reason": self.problem})
                await asyncio.sleep(RETRY_SECONDS)
        self._inbox = self._client.new_inbox()
        await self._client.subscribe(f"{self._inbox}.*", cb=self._collect)

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            await client.close()

    async def _reconnected(self) -> None:
        logger.info("connected to NATS again")
        await self.reconnected()

    async def _disconnected(self) -> None:
        if self._client is not None:
            logger.warning("the connection to NATS is lost; trying to get it back")
            await self.disconnected()

    async def _failed(self, error: Exception) -> None:
        if not self.connected:
            self._unanswered = f"NATS does not answer: {error}".removesuffix(": ")
        if isinstance(error, errors.SlowConsumerError):
            logger.warning("messages came faster than they were delivered", extra={"subject": error.subject})
            await self.overrun()

    def _there(self) -> Client:
        if self._client is None or not self._client.is_connected:
            raise Unavailable("NATS does not answer")
        return self._client

    # --- messages -----------------------------------------------------------------------------------------------------

    async def subscribe(self, subject: str, callback: Callable[[Msg], Awaitable[None]]) -> Subscription:
        """Returns when the server has heard of it. Raises `Unavailable`."""
        client = self._there()
        try:
            subscription = await client.subscribe(subject, cb=callback)
            await self.flush()
        except errors.Error as error:
            raise Unavailable(f"NATS does not answer: {error}") from None
        return subscription

    async def flush(self) -> None:
        try:
            await self._there().flush(timeout=max(1, round(self.timeout)))
        except (errors.Error, TimeoutError) as error:
            raise Unavailable(f"NATS does not answer: {error}") from None

    async def send(self, subject: str, payload: bytes, headers: Headers | None = None) -> None:
        """Without waiting for anybody. Raises `Unavailable`."""
        try:
            await self._there().publish(subject, payload, headers=None if headers is None else dict(headers))
        except errors.MaxPayloadError:
            raise TooLarge("the message is larger than NATS takes (max_payload)") from None
        except (errors.Error, OSError) as error:
            raise Unavailable(f"NATS does not answer: {error}") from None

    async def request(self, subject: str, payload: bytes, headers: Headers | None = None) -> Msg:
        """Raises `Unavailable` and `Unanswered`."""
        try:
            answer = await self._request(subject, payload, None if headers is None else dict(headers))
        except Unavailable as error:
            if self.connected or not self._unanswered:  # otherwise the client has told why there is no connection
                self._unanswered = str(error)
            raise
        self._unanswered = ""
        return answer

    async def _request(self, subject: str, payload: bytes, headers: dict[str, str] | None) -> Msg:
        try:
            return await self._there().request(subject, payload, self.timeout, headers=headers)
        except errors.NoRespondersError:
            raise Unavailable("JetStream is not there, or has no leader") from None
        except errors.OutboundBufferLimitError:
            raise Unavailable("NATS does not answer") from None
        except errors.MaxPayloadError:
            raise TooLarge("the message is larger than NATS takes (max_payload)") from None
        except (errors.Error, TimeoutError, OSError):
            raise Unanswered(f"NATS gave no answer within {self.timeout:g} s") from None

    # --- JetStream ----------------------------------------------------------------------------------------------------

    async def publish(self, subject: str, payload: bytes, headers: Headers) -> int:
        """The sequence under which it is stored. Raises `ApiError` too."""
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
            if error.get("code") == NOT_NOW:
                self._unanswered = str(refused)
            raise refused
        return answer

    async def last(self, jet: str, subject: str) -> Stored | None:
        """The last message of a subject, from the leader: whoever follows it may be behind."""
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
        """Messages of a subject from a sequence on, at most `most` and so many bytes, from any server that has them; whether
        there are more."""
        self._requests += 1
        key = str(self._requests)
        queue = self._collecting[key] = asyncio.Queue()
        bound = {"max_bytes": max_bytes} if max_bytes else {}
        question = msgspec.json.encode({"seq": sequence, "batch": most, "next_by_subj": subject, **bound})
        found: list[Stored] = []
        try:
            await self._there().publish(f"$JS.API.DIRECT.GET.{jet}", question, reply=f"{self._inbox}.{key}")
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
        """What those who listen to a subject say, until it is enough or the time is over. Raises `Unavailable`."""
        self._requests += 1
        key = str(self._requests)
        queue = self._collecting[key] = asyncio.Queue()
        said: list[bytes] = []
        try:
            async with asyncio.timeout(seconds):
                while not enough(said):
                    await self._there().publish(subject, b"", reply=f"{self._inbox}.{key}")
                    with suppress(TimeoutError):
                        async with asyncio.timeout(ASK_AGAIN_SECONDS):
                            while not enough(said):
                                message = await queue.get()
                                if message.data:  # otherwise it says that nobody listens
                                    said.append(message.data)
        except TimeoutError:
            pass
        except (errors.Error, OSError) as error:
            raise Unavailable(f"NATS does not answer: {error}") from None
        finally:
            del self._collecting[key]
        return said

    async def _collect(self, message: Msg) -> None:
        queue = self._collecting.get(message.subject.rpartition(".")[2])
        if queue is not None:
            queue.put_nowait(message)
