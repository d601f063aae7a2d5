"""Applications behind a real server, as clients and applications see it. Each kind runs the same obedient application.

Python channels run the complete suite. Commands, state and failures over gRPC and HTTP are in test_application_adapters.py; a
real server adds the protocol's own messages in their responses (`RpcWire`), concurrent calls and the order of their effects.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.applications.actions import Acting
from tests.conformance.applications.connects import Connecting
from tests.conformance.applications.crashes import Crashing
from tests.conformance.applications.disconnects import Leaving
from tests.conformance.applications.restores import Resuming
from tests.conformance.applications.rpc_wire import RpcWire
from tests.conformance.applications.sse import Sse
from tests.conformance.applications.stage import GRPC, HTTP, PYTHON, RESTORE, Stage, staged
from tests.conformance.applications.subscriptions import Subscribing
from tests.conformance.selection import only

pytestmark = pytest.mark.tier("standard")

HISTORY = ("--history_limit", "5", "--resume_timeout", "60s", "--sse", "--streams_whisper")
SEEN = ("--headers", "cookie,x-tenant", "--proxy_cookies", "user,theme")


@pytest.fixture(scope="class")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """One server for all cases of a class that need no settings of their own."""
    with staged(request.cls.kind, *HISTORY, *SEEN, RESTORE) as stage:
        yield stage


class ApplicationSuite(Connecting, Subscribing, Acting, Resuming, Leaving, Crashing, Sse):
    """Inherit it and name the kind."""


class TestPythonChannels(ApplicationSuite):
    kind = PYTHON


@only(
    *(name.removeprefix("test_") for name in dir(RpcWire) if name.startswith("test_")),
    "refused_client_is_disconnected_as_unauthorized",
    "failed_connect_call_closes_the_connection_without_a_message",
    "calls_carry_the_configured_headers_and_cookies",
    "commands_before_the_welcome_are_executed_after_it",
    "transmissions_arrive_before_the_confirmation",
    "rejection_follows_the_transmissions_and_keeps_the_session",
    "failed_subscribe_is_rejected",
    "replies_arrive_in_the_order_of_the_commands",
    "unsubscribe_call_has_the_state_and_delivery_ends",
    "state_is_kept_across_commands_until_it_is_deleted",
    "action_stops_and_adds_streams",
    "unknown_or_failed_action_changes_nothing",
    "whispers_need_the_permission_of_the_application",
    "application_sets_the_presence_of_a_client",
    "application_closes_the_connection_after_its_transmissions",
    "restored_call_has_all_state_and_may_change_it",
    "each_resume_is_one_restored_call_and_the_end_one_disconnect_call",
    "commands_are_called_after_the_restored_call",
    "connection_lost_during_the_restored_call_keeps_its_result",
    "disconnect_during_the_restored_call_is_called_after_it",
    "client_that_leaves_during_the_connect_call_is_disconnected",
    "disconnect_call_includes_commands_that_end_after_the_client_left",
    "remote_disconnect_ends_all_sessions_of_the_user",
    "lost_session_is_disconnected_after_its_ttl",
    "stopping_server_disconnects_all_sessions",
    "action_that_ends_during_the_shutdown_takes_effect",
    "sse_client_is_connected_subscribed_and_disconnected",
)
class TestGrpc(ApplicationSuite, RpcWire):
    kind = GRPC


@only(
    *(name.removeprefix("test_") for name in dir(RpcWire) if name.startswith("test_")),
    "refused_client_is_disconnected_as_unauthorized",
    "failed_connect_call_closes_the_connection_without_a_message",
    "calls_carry_the_configured_headers_and_cookies",
    "replies_arrive_in_the_order_of_the_commands",
    "state_is_kept_across_commands_until_it_is_deleted",
    "unknown_or_failed_action_changes_nothing",
    "restored_call_has_all_state_and_may_change_it",
    "base_protocol_client_that_closes_is_disconnected_at_once",
)
class TestHttp(ApplicationSuite, RpcWire):
    kind = HTTP
