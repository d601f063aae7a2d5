"""How much each measurement does: the full run, and a quick one that only shows that everything works.

Nothing else in the package holds a count.
"""

from msgspec import Struct


class Sizes(Struct, frozen=True):
    """Counts of one run. Rounds of floor and server alternate, and medians are reported (see `report`)."""

    subscribers: int
    payload: int
    fanout_rounds: int
    single_messages: int
    batched_messages: int
    batches: tuple[int, ...]
    latency_rounds: int
    latency_messages: int
    latency_rate: float
    neighbour_subscribers: int
    neighbour_rounds: int
    neighbour_messages: int
    neighbour_rate: float
    crowd_subscribers: int
    crowd_rate: float
    crowd_messages: int
    worker_subscribers: int
    memory_connections: int
    memory_settle: float
    storm_rounds: int
    storm_connections: int
    storm_rate: float
    publish_rounds: int
    publish_messages: int
    connect_rounds: int
    connect_clients: int
    connect_history: int
    append_publishers: int
    append_rounds: int
    append_messages: int
    append_batch: int
    append_batched_messages: int
    row_bytes: int
    rows: int
    row_streams: int
    shards: int
    spark_rounds: int
    spark_unmeasured: int
    sink_rows: int
    queryable_messages: int
    cold_unmeasured: int
    cold_rounds: int
    cold_ranges: int
    cold_range: int
    cold_rows_a_day: int
    cold_streams: int
    cold_days: tuple[int, ...]
    compact_repeats: int
    compact_rounds: int
    compact_rows: int
    compact_batches: int
    quiet_rounds: int
    quiet_subscribers: int
    quiet_messages: int
    quiet_rate: float
    quiet_background: int
    cluster_rounds: int
    cluster_messages: int
    cluster_streams: int
    redis_publishers: int
    nats_publishers: int
    cluster_trips: int
    cluster_paced: int
    cluster_rate: float
    broky_payload: int
    broky_rounds: int
    broky_trips: int
    broky_flows: tuple[tuple[int, int], ...]
    broky_producers: int
    broky_batch: int
    broky_client_messages: int
    broky_fanout_rounds: int
    broky_topics: int

    def descriptors(self) -> int:
        """Open files that the hungriest process needs: two crowds at once in the load, and some for itself."""
        return max(2 * self.subscribers, self.memory_connections, self.storm_connections, self.connect_clients) + 100


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
    neighbour_subscribers=10,
    neighbour_rounds=3,
    neighbour_messages=500,
    neighbour_rate=100.0,
    crowd_subscribers=10_000,
    crowd_rate=5.0,
    crowd_messages=20,
    worker_subscribers=20,
    memory_connections=10_000,
    memory_settle=4.0,
    storm_rounds=3,
    storm_connections=5000,
    storm_rate=10.0,
    publish_rounds=9,
    publish_messages=3000,
    connect_rounds=11,
    connect_clients=5000,
    connect_history=5,
    append_publishers=16,
    append_rounds=5,
    append_messages=4000,
    append_batch=50,
    append_batched_messages=20_000,
    row_bytes=200,
    rows=1_000_000,
    row_streams=1000,
    shards=16,
    spark_rounds=3,
    spark_unmeasured=1,
    sink_rows=200_000,
    queryable_messages=20,
    cold_unmeasured=10,
    cold_rounds=5,
    cold_ranges=100,
    cold_range=100,
    cold_rows_a_day=1_000_000,
    cold_streams=2000,
    # the archive grows by days, as it does in life
    cold_days=(1, 10),
    compact_repeats=3,
    compact_rounds=8,
    # in as many files as two minutes bring at the pace of the job
    compact_rows=12_000,
    compact_batches=12,
    quiet_rounds=3,
    quiet_subscribers=100,
    quiet_messages=400,
    quiet_rate=50.0,
    # messages a second that pass by meanwhile, so that there is something to archive
    quiet_background=2000,
    cluster_rounds=5,
    cluster_messages=5120,
    cluster_streams=50,
    redis_publishers=256,
    nats_publishers=64,
    cluster_trips=300,
    cluster_paced=100,
    cluster_rate=200.0,
    broky_payload=64,
    broky_rounds=5,
    broky_trips=2000,
    # messages of a run, and messages of a round
    broky_flows=((1, 200_000), (10, 600_000), (100, 1_000_000)),
    broky_producers=64,
    broky_batch=100,
    broky_client_messages=200_000,
    broky_fanout_rounds=21,
    broky_topics=1_000_000,
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
    neighbour_subscribers=5,
    neighbour_rounds=1,
    neighbour_messages=20,
    neighbour_rate=100.0,
    crowd_subscribers=300,
    crowd_rate=20.0,
    crowd_messages=4,
    worker_subscribers=10,
    memory_connections=100,
    memory_settle=0.2,
    storm_rounds=1,
    storm_connections=100,
    storm_rate=50.0,
    publish_rounds=2,
    publish_messages=50,
    connect_rounds=1,
    connect_clients=100,
    connect_history=5,
    append_publishers=4,
    append_rounds=1,
    append_messages=80,
    append_batch=10,
    append_batched_messages=400,
    row_bytes=200,
    rows=2000,
    row_streams=20,
    shards=2,
    spark_rounds=1,
    spark_unmeasured=0,
    sink_rows=500,
    queryable_messages=2,
    cold_unmeasured=1,
    cold_rounds=1,
    cold_ranges=5,
    cold_range=10,
    cold_rows_a_day=2000,
    cold_streams=20,
    cold_days=(1, 2),
    compact_repeats=1,
    compact_rounds=2,
    compact_rows=200,
    compact_batches=4,
    quiet_rounds=1,
    quiet_subscribers=10,
    quiet_messages=50,
    quiet_rate=100.0,
    quiet_background=500,
    cluster_rounds=1,
    cluster_messages=512,
    cluster_streams=5,
    redis_publishers=256,
    nats_publishers=64,
    cluster_trips=20,
    cluster_paced=10,
    cluster_rate=50.0,
    broky_payload=64,
    broky_rounds=1,
    broky_trips=50,
    broky_flows=((1, 2000), (10, 6000), (100, 20_000)),
    broky_producers=4,
    broky_batch=100,
    broky_client_messages=2000,
    broky_fanout_rounds=1,
    broky_topics=2000,
)
