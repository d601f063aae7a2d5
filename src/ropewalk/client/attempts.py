"""How often a batch of publications is sent: the rule that blocking and asynchronous senders share. No I/O, no sleeping.

What got no answer may have been registered, so it is sent again under the same uid. What has no uid could be delivered twice,
and is sent again only if it never left.
"""

import math
import time
import uuid
from collections.abc import Callable, Sequence

from msgspec import Struct
from msgspec.structs import replace

from ropewalk.client import publish_request
from ropewalk.client.errors import PublishUnanswered, PublishUnavailable
from ropewalk.client.publish_request import Draft
from ropewalk.core.backoff import Backoff, Chance

ATTEMPTS = 10
"""Of a publication or a push: with the usual backoff they take 21 to 43 seconds, which an ordinary restart does not."""

_SHORTEST = 0.001  # seconds: some libraries read 0 as "no limit"


class NotSent(PublishUnanswered):
    """No connection could be made, so nothing can have been registered."""


class RetryLimits(Struct, frozen=True):
    """How long a batch is tried: so many attempts, of `timeout` seconds each, and of `total` seconds with the pauses."""

    attempts: int = ATTEMPTS
    backoff: Backoff = Backoff()
    timeout: float = 10.0
    total: float = math.inf


class Attempts:
    """One batch on its way. Send `body` within `timeout()`; after a failure wait for `pause()` and send it again."""

    def __init__(
        self, drafts: Sequence[Draft], limits: RetryLimits, chance: Chance, clock: Callable[[], float] = time.monotonic
    ) -> None:
        named = [draft if draft.uid or draft.transient else replace(draft, uid=uuid.uuid4().hex) for draft in drafts]
        self.body = publish_request.body(named)
        self._repeatable = not any(draft.transient for draft in named)
        self._limits = limits
        self._chance = chance
        self._clock = clock
        self._deadline = clock() + limits.total
        self._failed = 0

    def timeout(self) -> float:
        """Seconds for the attempt that begins now."""
        return max(min(self._limits.timeout, self._left()), _SHORTEST)

    def pause(self, failure: PublishUnavailable) -> float:
        """Seconds until the next attempt. Raises the failure itself where there must not be one."""
        pause = self._limits.backoff.delay(self._failed, self._chance)
        self._failed += 1
        harmless = self._repeatable or isinstance(failure, NotSent)
        if not harmless or self._failed >= self._limits.attempts or pause >= self._left():
            raise failure
        return pause

    def _left(self) -> float:
        return self._deadline - self._clock()
