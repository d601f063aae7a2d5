"""For tests: a cable on which authors of Python channels try them, and suites for the ports, for authors of adapters.

`Cable` and its neighbours are plain asyncio and need no test framework. The conformance suites are pytest classes: inherit one,
fill its hooks, and let pytest-asyncio run it in auto mode.
"""

from typing import TYPE_CHECKING

from ropewalk.lazy import exports

if TYPE_CHECKING:
    from ropewalk.testing.channels.cable import Cable as Cable
    from ropewalk.testing.channels.client import Client as Client
    from ropewalk.testing.channels.mailbox import NothingReceived as NothingReceived
    from ropewalk.testing.channels.mailbox import Rejected as Rejected
    from ropewalk.testing.channels.subscription import Subscription as Subscription
else:
    # Imported when first asked for: the suites know nothing of the engine, and must not import it.
    __getattr__, __dir__ = exports(
        globals(),
        {
            "Cable": "ropewalk.testing.channels.cable",
            "Client": "ropewalk.testing.channels.client",
            "NothingReceived": "ropewalk.testing.channels.mailbox",
            "Rejected": "ropewalk.testing.channels.mailbox",
            "Subscription": "ropewalk.testing.channels.subscription",
        },
    )
