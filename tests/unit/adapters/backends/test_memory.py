"""The memory backend: every step is atomic, and epochs are random."""

from collections.abc import Coroutine

from ropewalk.adapters.backends.memory import MemoryBackend
from ropewalk.adapters.backends.memory.store import random_epoch
from ropewalk.core.rules import Rulebook
from ropewalk.model.limits import StoreLimits
from ropewalk.model.messages import Position, Publication
from ropewalk.model.rules import StreamRules
from ropewalk.model.sessions import SessionSnapshot
from ropewalk.testing.clock import ManualClock


def suspends(step: Coroutine[None, None, object]) -> bool:
    try:
        step.send(None)
    except StopIteration:
        return False
    step.close()
    return True


def test_no_step_suspends() -> None:
    backend = MemoryBackend(Rulebook(StreamRules(history_ttl=100.0)), ManualClock(), StoreLimits(dedup_ttl=20.0))
    steps: list[Coroutine[None, None, object]] = [
        backend.streams.append([Publication("a", b"1", uid="u"), Publication("a", b"2")]),
        backend.streams.replay("a", Position("", 0)),
        backend.streams.since("a", 0.0),
        backend.streams.tip("a"),
        backend.sessions.save("sid", SessionSnapshot("", {}), 1.0),
        backend.sessions.peek("sid"),
        backend.sessions.revoke("unknown", True),
        backend.sessions.take("sid"),
        backend.presence.expire(),
        backend.sweep(),
    ]
    assert [suspends(step) for step in steps] == [False] * len(steps)


def test_epochs_are_eight_url_safe_characters_and_unique() -> None:
    epochs = {random_epoch() for _ in range(100)}
    assert len(epochs) == 100
    assert all(len(epoch) == 8 and epoch.replace("-", "_").replace("_", "a").isalnum() for epoch in epochs)
