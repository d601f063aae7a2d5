"""The lifecycle of a session as one transition table. An event that is not in the table for a state has no effect."""

from enum import Enum


class SessionState(Enum):
    OPENING = "opening"  # connected, not authenticated yet
    LIVE = "live"  # welcomed; commands and deliveries flow
    ENDED = "ended"  # no more writes; the link may still be flushing


class LifecycleEvent(Enum):
    ACCEPTED = "accepted"
    CLOSED = "closed"  # by the server, for a reason of the closing table
    LOST = "lost"  # by the peer or the network


TRANSITIONS: dict[tuple[SessionState, LifecycleEvent], SessionState] = {
    (SessionState.OPENING, LifecycleEvent.ACCEPTED): SessionState.LIVE,
    (SessionState.OPENING, LifecycleEvent.CLOSED): SessionState.ENDED,
    (SessionState.OPENING, LifecycleEvent.LOST): SessionState.ENDED,
    (SessionState.LIVE, LifecycleEvent.CLOSED): SessionState.ENDED,
    (SessionState.LIVE, LifecycleEvent.LOST): SessionState.ENDED,
}


def advance(state: SessionState, event: LifecycleEvent) -> SessionState | None:
    """Returns the next state, or None if the event has no effect any longer, such as a close after a loss."""
    return TRANSITIONS.get((state, event))
