"""The life of a session as one table: which state an event leads to. What is not in the table must not happen."""

from enum import Enum


class State(Enum):
    OPENING = "opening"  # the link is up, the client is not known yet
    LIVE = "live"  # welcomed; commands and deliveries flow
    ENDED = "ended"  # no more writes; the link may still be flushing


class Event(Enum):
    ACCEPTED = "accepted"
    CLOSED = "closed"  # by us, for a reason of the closing table
    LOST = "lost"  # by the peer or the network


TRANSITIONS: dict[tuple[State, Event], State] = {
    (State.OPENING, Event.ACCEPTED): State.LIVE,
    (State.OPENING, Event.CLOSED): State.ENDED,
    (State.OPENING, Event.LOST): State.ENDED,
    (State.LIVE, Event.CLOSED): State.ENDED,
    (State.LIVE, Event.LOST): State.ENDED,
}


def advance(state: State, event: Event) -> State | None:
    """The next state, or None when the event comes too late to matter (a close after a loss, say)."""
    return TRANSITIONS.get((state, event))
