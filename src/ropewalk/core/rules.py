"""Finds the rules of a stream.

Invariant: the first pattern that matches the stream's name decides alone. Fields that it leaves out come from the default,
never from a later pattern. So specific patterns must stand before general ones, as in the settings file.
"""

import re
from collections.abc import Callable, Sequence
from fnmatch import translate
from functools import lru_cache

from ropewalk.model.rules import StreamRule, StreamRules

CACHED_STREAMS = 4096
"""Streams whose answer is remembered. A stream beyond that costs its patterns again, nothing else."""


class Rulebook:
    """The default and the patterns, in order. Patterns are shell globs, and case matters."""

    of: Callable[[str], StreamRules]
    """The rules of the stream of that name."""

    keeps_history: Callable[[str], bool]
    """Whether the stream of that name keeps any history."""

    keeps_all: bool
    """Every stream does."""

    def __init__(self, default: StreamRules, rules: Sequence[StreamRule] = ()) -> None:
        self.replace(default, rules)

    def replace(self, default: StreamRules, rules: Sequence[StreamRule] = ()) -> None:
        """Other rules from now on. Whoever remembers what it was told before has to ask again."""
        self._default = default
        self._patterns = [(re.compile(translate(rule.pattern)), _merged(default, rule)) for rule in rules]
        self.of = lru_cache(maxsize=CACHED_STREAMS)(self._match)
        everything = {default.keeps_history, *(rules.keeps_history for _, rules in self._patterns)}
        self.keeps_all = everything == {True}
        kept = default.keeps_history
        self.keeps_history = (lambda stream: kept) if len(everything) == 1 else lambda stream: self.of(stream).keeps_history

    def longest_history(self) -> int:
        """The largest number of messages that any stream keeps."""
        return max(self._default.history_limit, *(rules.history_limit for _, rules in self._patterns), 0)

    def _match(self, stream: str) -> StreamRules:
        for pattern, rules in self._patterns:
            if pattern.match(stream):
                return rules
        return self._default


def _merged(default: StreamRules, rule: StreamRule) -> StreamRules:
    return StreamRules(
        default.history_limit if rule.history_limit is None else rule.history_limit,
        default.history_ttl if rule.history_ttl is None else rule.history_ttl,
        default.slow_consumer if rule.slow_consumer is None else rule.slow_consumer,
        default.since_gaps if rule.since_gaps is None else rule.since_gaps,
    )
