"""The `[[streams]]` tables of the settings file: rules for the streams whose names fit a pattern, the first that fits deciding.

A rule says only what differs; the rest stays as the sections have it.
"""

from dataclasses import dataclass

from ropewalk.app.settings import values
from ropewalk.app.settings.values import ValueKind
from ropewalk.model.errors import UserMistake
from ropewalk.model.rules import SinceGaps, SlowPolicy, StreamRule


@dataclass(frozen=True)
class RuleKey:
    kind: ValueKind
    help: str


RULE_KEYS = {
    "pattern": RuleKey(values.TEXT, "Stream names the rule is for; `*` and `?` as in shell globs."),
    "history_limit": RuleKey(values.COUNT, "Messages kept; 0 keeps none."),
    "history_ttl": RuleKey(values.DURATION, "How long a message is kept; 0 keeps none."),
    "slow_consumer": RuleKey(
        values.one_of(*SlowPolicy),
        "A connection too slow for the stream: `disconnect` it, or `drop` to the newest message and tell it of the gap.",
    ),
    "since_gaps": RuleKey(
        values.one_of(*SinceGaps),
        "A request by time (`since`) that reaches further back than the history: `confirm` it with the gap, or `reject` it, so "
        "that client libraries report the gap.",
    ),
}


def stream_rules(tables: object, origin: str) -> tuple[StreamRule, ...]:
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UserMistake(f"{origin}: streams are written as tables, each under [[streams]]")
    rules = tuple(_rule(table, f"{origin}: [[streams]] {number}") for number, table in enumerate(tables, 1))
    for number, rule in enumerate(rules, 1):
        if any(rule.pattern == earlier.pattern for earlier in rules[: number - 1]):
            raise UserMistake(f"{origin}: [[streams]] {number}: an earlier rule has the pattern {rule.pattern!r} and decides")
    return rules


def _rule(table: dict[str, object], origin: str) -> StreamRule:
    for key in table:
        if key not in RULE_KEYS:
            raise UserMistake(f"{origin}: unknown key {key}" + values.nearest(key, tuple(RULE_KEYS)))
    pattern = _text(table, "pattern", origin)
    if not pattern:
        raise UserMistake(f"{origin}: a rule needs a pattern")
    limit, ttl, policy, gaps = (_read(table, key, origin) for key in RULE_KEYS if key != "pattern")
    return StreamRule(
        pattern,
        history_limit=limit if isinstance(limit, int) else None,
        history_ttl=ttl if isinstance(ttl, float) else None,
        slow_consumer=SlowPolicy(policy) if isinstance(policy, str) else None,
        since_gaps=SinceGaps(gaps) if isinstance(gaps, str) else None,
    )


def _read(table: dict[str, object], key: str, origin: str) -> values.Value | None:
    if key not in table:
        return None
    try:
        return RULE_KEYS[key].kind.read(table[key])
    except ValueError as error:
        raise UserMistake(f"{origin}: {key} {error}") from None


def _text(table: dict[str, object], key: str, origin: str) -> str:
    return str(_read(table, key, origin) or "")
