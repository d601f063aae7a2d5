"""Runs a part of a suite: the cases whose result a level can change. The suite itself runs complete elsewhere."""

from collections.abc import Callable
from typing import TypeVar

Suite = TypeVar("Suite")


def only(*names: str) -> Callable[[type[Suite]], type[Suite]]:
    """Class decorator that drops all inherited cases but these (without `test_`)."""

    def select(suite: type[Suite]) -> type[Suite]:
        cases = {name for name in dir(suite) if name.startswith("test_")}
        wanted = {f"test_{name}" for name in names}
        assert wanted <= cases, f"{suite.__name__} has no {sorted(wanted - cases)}"
        for name in cases - wanted:
            setattr(suite, name, None)
        return suite

    return select


SHARDED = (
    "batch_keeps_its_order_and_message_fields",
    "different_partition_key_rejects_the_whole_batch",
    "rejected_partition_key_does_not_fail_concurrent_appends",
    "summaries_are_paged_by_name",
    "uid_is_registered_once_per_stream",
    "sequence_is_registered_once_and_keeps_its_position",
    "concurrent_appends_register_a_sequence_once",
    "saved_session_is_returned_complete_and_once",
    "revoke_removes_all_sessions_of_one_identity",
    "expired_session_is_reported_once",
    "expired_sessions_are_reported_in_portions",
    "detached_session_leaves_after_the_grace_period",
    "adopted_membership_continues_without_events",
    "message_arrives_with_its_position_and_fields",
    "transient_messages_have_no_position_and_are_not_stored",
    "run_arrives_as_one_frame_or_as_its_messages",
    "presence_changes_arrive_as_transient_messages",
    "stopped_feed_delivers_nothing",
    "gauges_count_the_stored_objects",
    "sweep_removes_everything_after_a_long_idle_time",
    "uid_limit_drops_the_oldest_uids",
)
"""Cases of `BackendConformance` whose streams, sessions or members lie on several shards."""

SHARED = (
    "live_session_is_taken_over_and_its_node_is_notified",
    "former_node_cannot_write_a_session_after_takeover",
    "session_of_a_dead_node_expires_once",
    "expired_lease_is_replaced_and_rewritten_sessions_stay_live",
    "revoke_ends_live_sessions_of_another_node",
    "disconnect_request_arrives_before_the_revoked_sessions",
    "members_of_a_dead_node_leave_once",
    "unavailable_store_changes_nothing",
    "unanswered_calls_can_be_repeated",
    "slow_store_does_not_delay_other_nodes",
)
"""Cases of `LeaseConformance` in which one node sees the writes of another."""

QUEUED = (
    "publications_of_all_nodes_are_queued_in_order",
    "rows_stay_until_they_are_removed_once",
    "nodes_add_rows_of_their_own",
)
"""Cases of `RecordQueueConformance` with rows of several shards."""
