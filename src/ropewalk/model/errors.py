"""The tree of errors. Who erred is in the type.

RopewalkError
├── ClientError               they erred: they get a clear answer, nobody else notices
│   ├── MalformedFrame        closes the connection with `code`
│   ├── MalformedPublication  422; `index` is its place in the batch
│   ├── BadRequest            400: a query that cannot be read
│   │   ├── BadBody           a body that is not what its headers say
│   │   └── TooDeep           JSON that is nested too deeply
│   ├── LateBody              408: a body that was not sent whole in time
│   ├── UnsupportedEncoding   415: a Content-Encoding that is not understood
│   ├── Conflict              409: it does not fit what was done before; `missing` is what it lacks
│   │   └── PartitionChanged  a stream has one partition key as long as it exists
│   │       └── PartitionNotInName  on a ring it follows from the name
│   ├── TooLarge              413, or close code 1009
│   ├── LimitReached          a set bounded by the settings is full: the one more is refused
│   └── UserMistake           a wrong flag, file or argument; the command line prints it without a traceback
└── ServerError               we erred
    ├── ApplicationError      the application was asked and failed
    └── Unavailable           a dependency is down: 503
        ├── NameTaken         another process is this node of the ring
        ├── NotProven         the other end of a ring link does not prove the ring's key
        ├── Moved             it is another node's now: nothing happened, ask there
        └── Unanswered        it was asked, and whether it heard is not known
"""

from collections.abc import Mapping, Sequence

from ropewalk.model.application import Reply
from ropewalk.model.nesting import MAX_DEPTH
from ropewalk.model.refusals import Refusal


class RopewalkError(Exception):
    """The base of all errors that Ropewalk raises itself."""


class ClientError(RopewalkError):
    """A mistake of the client or user. `refusal`: the reason it is counted under, if it is counted."""

    refusal: Refusal | None = None


class MalformedFrame(ClientError):
    """A frame that is not a command. Code 1007: not UTF-8 or not JSON; 1003: JSON of another shape."""

    def __init__(self, reason: str, code: int = 1007, refusal: Refusal = Refusal.BAD_FRAME) -> None:
        super().__init__(reason)
        self.reason = reason
        self.code = code
        self.refusal = refusal


class MalformedPublication(ClientError):
    """A publication that cannot be registered, and which one of its batch it is."""

    def __init__(self, reason: str, index: int = 0, refusal: Refusal | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.index = index
        self.refusal = refusal


class BadRequest(ClientError):
    """A query parameter or header that cannot be read."""


class BadBody(BadRequest):
    """A request body that cannot be inflated as its headers say."""


class LateBody(ClientError):
    """A request body that did not come in time."""


class UnsupportedEncoding(ClientError):
    """A request body in a compression that is not understood."""


class TooDeep(BadRequest):
    """JSON that is nested more deeply than any endpoint takes."""

    refusal = Refusal.NESTING

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} is nested more than {MAX_DEPTH} deep")


class Conflict(ClientError):
    """What is asked for does not follow from what was done before it."""

    def __init__(self, reason: str, missing: Sequence[Mapping[str, int]] = ()) -> None:
        super().__init__(reason)
        self.missing = missing


class PartitionChanged(Conflict):
    """A publication names another partition key than the one that its stream has."""

    def __init__(self, stream: str, named: str, kept: str) -> None:
        super().__init__(f"the stream {stream!r} has the partition key {kept!r}, which cannot become {named!r}")
        self.stream = stream
        self.named = named
        self.kept = kept


class PartitionNotInName(PartitionChanged):
    """A publication names another partition key than the one that follows from the name of its stream, on a ring."""

    def __str__(self) -> str:
        return (
            f"on a ring the partition key of a stream follows from its name, and that of {self.stream!r} is {self.kept!r}: for"
            f" {self.named!r} the name needs it in braces, such as {f'{{{self.named}}}/{self.stream}'!r}"
        )


class TooLarge(ClientError):
    """More bytes than the settings allow."""


class LimitReached(ClientError):
    """One more than the settings allow."""


class UserMistake(ClientError):
    """Something the person at the command line can put right; the text says how."""


class ServerError(RopewalkError):
    """Our mistake, or that of something we depend on. `reply`: what the client hears whose action failed by it, if anything."""

    reply: Reply | None = None


class ApplicationError(ServerError):
    """The application behind the server answered with an error, or with what cannot be read."""


class Unavailable(ServerError):
    """A dependency cannot be reached now."""


class NameTaken(Unavailable):
    """Another process lives that is the same node of the ring."""


class NotProven(Unavailable):
    """The other end of a link between ring nodes has not proved that it has the key of the ring."""


class Moved(Unavailable):
    """A node of a ring was asked that does not hold the shard. Nothing has happened."""


class Unanswered(Unavailable):
    """A dependency was asked and gave no answer in time: it may have done what it was asked for, or may do it yet."""
