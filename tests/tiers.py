"""Which tests run when: `make test-fast`, `make test` and `make test-all` each add a tier to the one before.

A test belongs to the tier of its directory. `@pytest.mark.tier("all")` on a case, a class or a module (`pytestmark`) puts
it into a higher one. Tests whose path is given on the command line run whatever their tier.
"""

from enum import IntEnum

import pytest


class Tier(IntEnum):
    """`fast`: in this process only. `standard`: single servers, one Redis, one NATS, one Spark session. `all`: everything."""

    FAST = 0
    STANDARD = 1
    ALL = 2


DIRECTORIES = {
    "project": Tier.FAST,
    "unit": Tier.FAST,
    "property": Tier.FAST,
    "simulation": Tier.FAST,
    "conformance": Tier.FAST,
    "docs": Tier.FAST,
    "scenarios": Tier.STANDARD,
    "clients": Tier.STANDARD,
    "browser": Tier.STANDARD,
    "spark": Tier.STANDARD,
    "workers": Tier.ALL,
    "ring": Tier.ALL,
    "cluster": Tier.ALL,
    "faults": Tier.ALL,
    "benchmarks": Tier.ALL,
    "packaging": Tier.ALL,
}
"""By the directory below `tests/`."""


def tier_of(item: pytest.Item) -> Tier:
    tier = DIRECTORIES.get(item.nodeid.removeprefix("tests/").partition("/")[0], Tier.FAST)
    return max(tier, *(Tier[marker.args[0].upper()] for marker in item.iter_markers("tier")), Tier.FAST)
