"""Stream rules: the settings that may differ from stream to stream."""

from enum import StrEnum

from msgspec import Struct


class SlowPolicy(StrEnum):
    """What happens to a connection whose outbox is full."""

    DISCONNECT = "disconnect"  # close it; the client comes back and resumes without loss
    DROP = "drop"  # skip to the stream's newest message and tell the client about the gap


class SinceGaps(StrEnum):
    """What answers a request by time (`since`) whose first messages are no longer kept, unless the client takes positions."""

    CONFIRM = "confirm"  # `confirm_history` with the gap: libraries report success, and may reload without end otherwise
    REJECT = "reject"  # `reject_history`: libraries report that history is missing


class StreamRules(Struct, frozen=True):
    """Times are seconds. A limit or TTL of 0 means that no history is kept."""

    history_limit: int = 100
    history_ttl: float = 300.0
    slow_consumer: SlowPolicy = SlowPolicy.DISCONNECT
    since_gaps: SinceGaps = SinceGaps.CONFIRM

    @property
    def keeps_history(self) -> bool:
        return self.history_limit > 0 and self.history_ttl > 0


class StreamRule(Struct, frozen=True):
    """One pattern of the settings file (`*` and `?` as in shell globs) and what it overrides; None leaves the default."""

    pattern: str
    history_limit: int | None = None
    history_ttl: float | None = None
    slow_consumer: SlowPolicy | None = None
    since_gaps: SinceGaps | None = None
