"""Connections by user and by address: limits, rates, and what several processes tell each other."""

import pytest

from ropewalk.core import quotas
from ropewalk.core.quotas import BURST_SECONDS, ConnectionQuotas, TokenBucket, quota_address
from ropewalk.model.limits import Limits
from ropewalk.model.refusals import Refusal


def allowed(bucket: TokenBucket, now: float, tries: int) -> int:
    return sum(bucket.allow(now) for _ in range(tries))


def test_burst_passes_at_once_then_the_rate_applies() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert allowed(bucket, 100.0, 10) == 5
    assert allowed(bucket, 100.5, 10) == 1
    assert allowed(bucket, 102.0, 10) == 3


def test_long_pause_saves_at_most_one_burst() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert allowed(bucket, 100.0, 10) == 5
    assert allowed(bucket, 100_000.0, 10) == 5


def test_clock_step_back_grants_no_tokens() -> None:
    bucket = TokenBucket(rate=1.0, burst=1.0)
    assert bucket.allow(100.0)
    assert not bucket.allow(50.0)
    assert bucket.allow(51.0)


def test_tokens_spent_ahead_are_repaid_first() -> None:
    bucket = TokenBucket(rate=1, burst=5)
    assert bucket.allow(100)
    bucket.spend(10)
    assert not bucket.allow(100)
    assert not bucket.allow(106)
    assert bucket.allow(107)


def test_several_tokens_are_taken_together_or_not_at_all() -> None:
    bucket = TokenBucket(rate=2.0, burst=5.0)
    assert bucket.allow(100.0, 4)
    assert not bucket.allow(100.0, 2)
    assert bucket.allow(100.0)
    assert bucket.allow(102.0, 4)


ALICE = '{"user":"alice"}'
ADDRESS, OTHER = "203.0.113.1", "203.0.113.2"


def quotas_of(per_user: int = 0, per_address: int = 0, rate: float = 0) -> ConnectionQuotas:
    return ConnectionQuotas(Limits(max_conn_per_user=per_user, max_conn_per_address=per_address, conn_rate_per_address=rate))


def test_user_above_the_limit_is_refused_until_a_connection_ends() -> None:
    found = quotas_of(per_user=2)
    assert [found.identify(ALICE) for _ in range(3)] == [ALICE, ALICE, Refusal.USER_CONNECTIONS]
    assert found.identify('{"user":"bob"}') == '{"user":"bob"}'
    found.leave("", ALICE)
    assert found.identify(ALICE) == ALICE


def test_clients_without_identifiers_are_no_user() -> None:
    found = quotas_of(per_user=1)
    assert [found.identify(ids) for ids in ("", "", "{}", "{}")] == [""] * 4


def test_address_above_the_limit_is_refused_until_a_connection_ends() -> None:
    found = quotas_of(per_address=2)
    assert [found.enter(ADDRESS, 0.0) for _ in range(3)] == [ADDRESS, ADDRESS, Refusal.ADDRESS_CONNECTIONS]
    assert found.enter(OTHER, 0.0) == OTHER
    found.leave(ADDRESS, "")
    assert found.enter(ADDRESS, 0.0) == ADDRESS


def test_address_that_connects_too_fast_is_refused() -> None:
    found = quotas_of(rate=2)
    answers = [found.enter(ADDRESS, 100.0) for _ in range(2 * BURST_SECONDS + 1)]
    assert answers == [ADDRESS] * 2 * BURST_SECONDS + [Refusal.ADDRESS_RATE]
    assert found.enter(OTHER, 100.0) == OTHER
    assert [found.enter(ADDRESS, 101.0) for _ in range(3)] == [ADDRESS, ADDRESS, Refusal.ADDRESS_RATE]


def test_sweep_forgets_only_addresses_that_may_connect_at_full_speed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_BUCKETS", 2)
    found = quotas_of(rate=0.1)
    assert found.enter(ADDRESS, 100.0) == ADDRESS
    found.sweep(101.0)
    assert found.enter(ADDRESS, 101.0) == Refusal.ADDRESS_RATE
    found.sweep(120.0)
    assert found.enter(ADDRESS, 120.0) == ADDRESS
    assert [found.enter(f"203.0.113.{number}", 120.0) for number in (5, 6)] == ["203.0.113.5", "203.0.113.6"]
    assert found.enter(ADDRESS, 120.0) == ADDRESS  # forgotten for a new one


@pytest.mark.parametrize("remote", ["", "127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1"])
def test_loopback_and_unix_sockets_are_not_limited(remote: str) -> None:
    found = quotas_of(per_address=1, rate=0.1)
    assert [found.enter(remote, 0.0) for _ in range(9)] == [""] * 9


def test_ipv6_addresses_count_by_network() -> None:
    assert quota_address("2001:db8:1:2::5") == quota_address("2001:db8:1:2:ffff::9%eth0") == "2001:0db8:0001:0002"
    assert quota_address("2001:db8:1:3::5") != quota_address("2001:db8:1:2::5")
    assert quota_address("::ffff:203.0.113.1") == ADDRESS


def test_limits_hold_for_several_processes_together() -> None:
    one, two = quotas_of(per_user=6, per_address=6), quotas_of(per_user=6, per_address=6)
    for _ in range(4):
        assert (one.enter(ADDRESS, 0.0), one.identify(ALICE)) == (ADDRESS, ALICE)
    two.set_elsewhere(one.crowds())
    for expected in ((ADDRESS, ALICE), (ADDRESS, ALICE), (Refusal.ADDRESS_CONNECTIONS, Refusal.USER_CONNECTIONS)):
        assert (two.enter(ADDRESS, 0.0), two.identify(ALICE)) == expected
    for _ in range(4):
        one.leave(ADDRESS, ALICE)
    two.set_elsewhere(one.crowds())
    assert (two.enter(ADDRESS, 0.0), two.identify(ALICE)) == (ADDRESS, ALICE)


def test_reports_name_the_largest_crowds_and_no_identity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "MAX_REPORTED", 2)
    found = quotas_of(per_user=1000)
    for number in range(60):
        for _ in range(number):
            found.identify(f"user {number}")
    crowds = found.crowds()
    assert sorted(crowds.values()) == [58, 59]
    assert not any("user" in key for key in crowds)


def test_crowd_is_reported_down_to_its_share_of_the_limit() -> None:
    found = quotas_of(per_user=10 * quotas.REPORTED_SHARE)
    for _ in range(11):
        found.identify(ALICE)
    reported = []
    for _ in range(3):
        reported.append(list(found.crowds().values()))
        found.leave("", ALICE)
    assert reported == [[11], [10], []]


def test_user_without_connections_takes_no_memory() -> None:
    found = quotas_of(per_user=2, per_address=2)
    found.leave(str(found.enter(ADDRESS, 0.0)), str(found.identify(ALICE)))
    assert (found._users._taken, found._addresses._taken) == ({}, {})


def test_changed_limits_hold_for_connections_to_come() -> None:
    found = quotas_of()
    for _ in range(3):
        found.identify(ALICE)
        found.enter(ADDRESS, 0.0)
    assert found.crowds() == {}
    found.limit(3, 3, 0)
    assert found.identify(ALICE) == Refusal.USER_CONNECTIONS
    assert found.enter(ADDRESS, 0.0) == Refusal.ADDRESS_CONNECTIONS
    assert sorted(found.crowds().values()) == [3, 3]
