"""Deliveries in slices: whoever joins, leaves or slows down between two turns, each listener gets all messages of its stay in
order, none twice, and each gap in its place."""

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from ropewalk.core.stats import Stats
from ropewalk.engine.audience import Group
from ropewalk.engine.hub import Hub
from ropewalk.model.history import Gap, GapReason
from ropewalk.model.messages import Position, Registered
from ropewalk.protocol.websocket_frame import MESSAGES as CABLE

STREAM = "s"


@dataclass(eq=False)
class Stay:
    """A listener from its join to its leave. `expected`: what it must have got at the end."""

    names: tuple[str, ...]
    got: list[bytes] = field(default_factory=list)
    expected: list[bytes] = field(default_factory=list)
    lost: list[int] = field(default_factory=list)
    expected_lost: list[int] = field(default_factory=list)
    group: Group | None = None
    slow: bool = False

    def attach(self, group: Group) -> None:
        self.group = group
        group.writers[self] = self.write
        group.apart = group.apart or self.slow

    def detach(self, group: Group) -> None: ...

    def missed(self, group: Group, after: Position, upto: Position) -> None:
        self.lost.append(upto.offset)

    def write(self, frame: bytes) -> int | None:
        if self.slow:
            assert self.group is not None
            self.group.apart = True
        self.got.append(frame)
        return None

    def write_rest(self, rest: bytes) -> None:
        raise AssertionError("all of it was written")


class Loop:
    """Runs the hub's turns one by one."""

    def __init__(self) -> None:
        self.due = 0

    def call_soon(self, call: object) -> None:
        self.due += 1

    def time(self) -> float:
        return 0.0


STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("join"), st.booleans()),
        st.tuples(st.sampled_from(["leave", "exclude", "silence"]), st.integers(0, 1000)),
        st.tuples(st.sampled_from(["publish", "publish fleeting", "gap", "turn"]), st.just(0)),
    ),
    max_size=120,
)


@given(STEPS, st.integers(1, 4))
def test_every_listener_gets_everything_of_its_stay_once_and_in_order(steps: list[tuple[str, int]], slice_writes: int) -> None:
    loop = Loop()
    hub = Hub(Stats(), lambda: 0.0, slice_writes=slice_writes)
    hub._loop = loop  # type: ignore[assignment]
    stays: list[Stay] = []
    left: list[Stay] = []
    offset = number = 0
    head = CABLE.head("")
    for step, choice in steps:
        audience = hub.audiences.get(STREAM)
        match step:
            case "join":
                number += 1
                stay = Stay((f"{number}",), slow=bool(choice))
                hub.join(STREAM, "", CABLE, stay)
                stays.append(stay)
            case "leave" | "silence" if stays:
                stay = stays.pop(choice % len(stays))
                assert stay.group is not None
                if step == "silence":
                    hub.silence([stay.group], stay)
                hub.leave(stay.group, stay)
                left.append(stay)
            case "turn" if loop.due:
                loop.due = 0
                hub.flush()
            case "publish" | "publish fleeting" | "exclude" if audience is not None:
                offset += step != "publish fleeting"
                excluded = stays[choice % len(stays)].names[0] if step == "exclude" and stays else ""
                epoch, at = ("", 0) if step == "publish fleeting" else ("e", offset)
                message = Registered(STREAM, b"%d" % offset, 0.0, epoch, at, excluded)
                hub.deliver(audience, message)
                for stay in stays:
                    if excluded not in stay.names:
                        stay.expected.append(CABLE.message(head, message))
            case "gap" if audience is not None:
                offset += 2
                gap = Gap(STREAM, GapReason.TRIMMED, "e", offset + 1, offset)
                hub.send_gap(audience, gap, Position("e", offset - 2))
                for stay in stays:
                    stay.expected.append(CABLE.reject_history("", [gap]))
                    stay.expected_lost.append(gap.upto.offset)
            case _:
                pass
    while loop.due:
        loop.due = 0
        hub.flush()
    for stay in (*stays, *left):
        assert b"".join(stay.got) == b"".join(stay.expected)
        assert stay.lost == stay.expected_lost
    for stay in stays:
        assert stay.group is not None
        assert len(stay.group.writers) <= slice_writes
        hub.leave(stay.group, stay)
    assert not hub.audiences
