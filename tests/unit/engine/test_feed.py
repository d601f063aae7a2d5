"""What waits while a stream is out of step with its feed. How it comes back into step is for the simulation to show."""

from ropewalk.engine.hub import MESSAGE_BYTES, Backlog
from ropewalk.model.messages import Registered


async def test_a_backlog_is_bounded_however_small_its_messages_are() -> None:
    backlog = Backlog(100 * MESSAGE_BYTES)
    most = 0
    for offset in range(1, 1_000):
        backlog.add(Registered("a", b"1", 0.0, "e", offset))
        most = max(most, len(backlog.messages))
    assert backlog.overflowed
    assert 90 < most < 100


async def test_there_is_room_again_for_what_comes_after_it_was_taken() -> None:
    backlog = Backlog(2 * MESSAGE_BYTES)
    backlog.add(Registered("a", b"1", 0.0, "e", 1))
    assert [message.offset for message in backlog.take()] == [1]
    backlog.add(Registered("a", b"1", 0.0, "e", 2))
    assert ([message.offset for message in backlog.take()], backlog.overflowed) == ([2], False)
