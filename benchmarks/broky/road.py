"""All measurements of Broky, one server state after another."""

from benchmarks.broky.clients import measure_clients
from benchmarks.broky.fanout import measure_fanout
from benchmarks.broky.flows import measure_flows
from benchmarks.broky.topics import measure_topics
from benchmarks.broky.trips import measure_trips
from benchmarks.cores import Cores
from benchmarks.report import Figure
from benchmarks.sizes import Sizes


def measure_broky(sizes: Sizes) -> list[Figure]:
    cores = Cores.of_this_machine()
    parts = (measure_trips, measure_flows, measure_clients, measure_fanout, measure_topics)
    return [found for part in parts for found in part(sizes, cores)]
