"""The obedient application: one behaviour, which every kind of application under test has.

It accepts clients by name and executes the orders in their commands, so that a test has the behaviour of the application and
the expected result in one place. It logs every call before it does anything else, see `application_events`.

Connect: the name is the cookie `user`, or else the parameter `user` of the URL. A client without one is refused, one named
`boom` is an error. Others are known by `{"user": name}`, and the connection's state gets `entered`.

With the parameter `slow` in the URL it takes its time for connect and restored. With the parameter `hang` it never answers a
connect, restored or disconnect.

Subscribe to `ObedientChannel`: the order is in the identifier, under `order`. Any other channel is an error.

Perform `obey`: the order is in the data, under `order`. Any other action is an error.

Restored: `welcome back` is transmitted to every subscription, and `returned` is noted in its state and the connection's.

Unsubscribe and disconnect are written down, and that is all.
"""

import json

from msgspec import Struct, to_builtins

CHANNEL = "ObedientChannel"
ACTION = "obey"
NAME = "user"
FAILING = "boom"
WELCOME_BACK = "welcome back"
YES = "yes"
SLOW = "slow"
HANG = "hang"
PAUSE = 0.3  # seconds: enough for a server that does not wait for the answer to be seen doing something else


class Order(Struct, frozen=True, omit_defaults=True):
    """What to do. Transmissions (`say`) come before the confirmation or rejection.

    `streams` to stream from; `whisper` and `presence` are streams too, to which the client may whisper, or where it may be
    present. `keep` changes the state of the subscription, `remember` that of the connection; "" deletes a key. `join` is the id
    under which the application puts the client into the presence set. `slow`: take your time. `hang`: never answer, which is
    for a subscribe only. `blurt`: transmit exactly this,
    which only an application that is asked by RPC can.
    """

    streams: tuple[str, ...] = ()
    whisper: str = ""
    presence: str = ""
    stop: tuple[str, ...] = ()
    stop_all: bool = False
    say: tuple[str, ...] = ()
    blurt: tuple[str, ...] = ()
    keep: dict[str, str] = {}
    remember: dict[str, str] = {}
    join: str = ""
    leave: bool = False
    reject: bool = False
    fail: bool = False
    disconnect: bool = False
    slow: bool = False
    hang: bool = False


def seat(order: Order | None = None, number: int = 0) -> str:
    """The identifier of a subscription; `number` distinguishes those with the same order."""
    return json.dumps({"channel": CHANNEL, "number": number, "order": to_builtins(order or Order())})


def call(order: Order | None = None) -> str:
    """The data of an action."""
    return json.dumps({"action": ACTION, "order": to_builtins(order or Order())})


def info(member: str) -> dict[str, str]:
    """The info of a member that the application adds."""
    return {"name": member}
