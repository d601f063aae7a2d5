"""The tree of errors: the type distinguishes errors of the client from those of the server.

RopewalkError
├── ClientError               the client's error: it gets a clear response, others are not affected
│   ├── MalformedFrame        closes the connection with `code`
│   ├── MalformedPublication  422; `index` is its place in the batch
│   ├── BadRequest            400: a query that cannot be read
│   │   ├── BadBody           a body that does not match its headers
│   │   └── TooDeep           JSON that is nested too deeply
│   ├── LateBody              408: a body that was not complete in time
│   ├── UnsupportedEncoding   415: an unsupported Content-Encoding
│   ├── Conflict              409: conflicts with earlier requests; `missing` lists what it lacks
│   │   └── PartitionChanged  a stream keeps its partition key as long as it exists
│   │       └── PartitionNotInName  on a ring the key follows from the name
│   ├── TooLarge              413, or close code 1009
│   ├── LimitReached          a set that the settings limit is full
│   └── UserMistake           a wrong flag, file or argument; the command line prints it without a traceback
└── ServerError               the server's error
    ├── ApplicationError      the application failed
    └── Unavailable           a dependency is down: 503
        ├── NameTaken         another process is this node of the ring
        ├── NotProven         the other end of a ring link does not prove the ring's key
        ├── Moved             another node holds the shard: nothing happened, retry there
        └── Unanswered        timeout: whether the dependency processed the request is unknown
"""

from collections.abc import Mapping, Sequence

from ropewalk.model.application import Reply
from ropewalk.model.nesting import MAX_DEPTH
from ropewalk.model.refusals import Refusal


class RopewalkError(Exception):
    """The base of all errors that Ropewalk raises itself."""


class ClientError(RopewalkError):
    """A mistake of the client or user. `refusal`: the reason under which it is counted, if any."""

    refusal: Refusal | None = None


class MalformedFrame(ClientError):
    """A frame that is not a command. Code 1007: not UTF-8 or not JSON; 1003: JSON of another shape."""

    def __init__(self, reason: str, code: int = 1007, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.refusal = refusal


class MalformedPublication(ClientError):
    """A publication that cannot be registered. `index`: its place in the batch."""

    def __init__(self, reason: str, index: int = 0, refusal: Refusal | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.index = index
        self.refusal = refusal


class BadRequest(ClientError):
    """A query parameter or header that cannot be read."""


class BadBody(BadRequest):
    """A request body that cannot be decompressed by its headers."""


class LateBody(ClientError):
    """A request body that was not complete in time."""


class UnsupportedEncoding(ClientError):
    """A request body in an unsupported compression."""


class TooDeep(BadRequest):
    """JSON that is nested deeper than the limit of all endpoints."""

    refusal = Refusal.NESTING

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is nested more than {MAX_DEPTH} deep")


class Conflict(ClientError):
    """The request conflicts with earlier ones."""

    def __init__(self, reason: str, missing: Sequence[Mapping[str, int]] = ()) -> None:
        super().__init__(reason)
        self.missing = missing


class PartitionChanged(Conflict):
    """A publication has another partition key than its stream."""

    def __init__(self, stream: str, named: str, kept: str) -> None:
        super().__init__(f"the stream {stream!r} has the partition key {kept!r}, which cannot become {named!r}")
        self.stream = stream
        self.named = named
        self.kept = kept


class PartitionNotInName(PartitionChanged):
    """On a ring a publication has another partition key than the one in its stream's name."""

    def __str__(self) -> str:
        return (
            f"on a ring the stream's name decides the partition key, which is {self.kept!r} for {self.stream!r}: for"
            f" {self.named!r} put it into the name in braces, such as {f'{{{self.named}}}/{self.stream}'!r}"
        )


class TooLarge(ClientError):
    """Larger than the settings allow."""


class LimitReached(ClientError):
    """A set that the settings limit is full."""


class UserMistake(ClientError):
    """A mistake that the user can correct; the text explains how."""


class ServerError(RopewalkError):
    """An error of the server or of a dependency. `reply`: the reply to the client whose action failed, if any."""

    reply: Reply | None = None


class ApplicationError(ServerError):
    """The application responded with an error, or with an invalid response."""


class Unavailable(ServerError):
    """A dependency cannot be reached."""


class NameTaken(Unavailable):
    """Another live process is the same node of the ring."""


class NotProven(Unavailable):
    """The other end of a ring link has not proved that it has the key of the ring."""


class Moved(Unavailable):
    """The ring node does not hold the shard. Nothing has happened."""


class Unanswered(Unavailable):
    """Timeout of a request to a dependency, which may have processed it or may still do so."""
