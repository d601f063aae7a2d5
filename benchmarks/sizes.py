"""How much each measurement does: the full run, and a quick one that only shows that everything works.

Nothing else in the package holds a count.
"""

from msgspec import Struct


class Sizes(Struct, frozen=True):
    """Counts of one run. Rounds of floor and server alternate, and medians are reported."""

    subscribers: int
    payload: int
    fanout_rounds: int
    single_messages: int
    batched_messages: int
    batches: tuple[int, ...]
    latency_rounds: int
    latency_messages: int
    latency_rate: float
    memory_connections: int
    memory_settle: float
    storm_rounds: int
    storm_connections: int
    storm_rate: float

    def descriptors(self) -> int:
        """Open files that the hungriest process needs: two crowds at once in the load, and some for itself."""
        return max(2 * self.subscribers, self.memory_connections, self.storm_connections) + 100


FULL = Sizes(
    subscribers=1000,
    payload=100,
    fanout_rounds=11,
    single_messages=200,
    batched_messages=2000,
    batches=(10, 50),
    latency_rounds=5,
    latency_messages=150,
    # well below what one process can deliver: above, it is queueing that would be measured
    latency_rate=50.0,
    memory_connections=10_000,
    memory_settle=4.0,
    storm_rounds=3,
    storm_connections=5000,
    storm_rate=10.0,
)

QUICK = Sizes(
    subscribers=50,
    payload=100,
    fanout_rounds=2,
    single_messages=20,
    batched_messages=100,
    batches=(10,),
    latency_rounds=1,
    latency_messages=20,
    latency_rate=100.0,
    memory_connections=100,
    memory_settle=0.2,
    storm_rounds=1,
    storm_connections=100,
    storm_rate=50.0,
)
