"""Applications behind a server of several processes: the cases in which a session moves between workers or ends.

A resumed session may reach another worker, and its disconnect call is made by the worker or the store process that ends it.
Commands within one connection stay in one worker. A wire is the same in every worker, so HTTP is not repeated.
"""

from collections.abc import Iterator

import pytest

from tests.conformance.applications.actions import Acting
from tests.conformance.applications.crashes import Crashing
from tests.conformance.applications.disconnects import Leaving
from tests.conformance.applications.restores import Resuming
from tests.conformance.applications.stage import GRPC, PYTHON, RESTORE, Stage, staged
from tests.conformance.applications.subscriptions import Subscribing
from tests.conformance.applications.test_applications import HISTORY, SEEN
from tests.conformance.selection import only

pytestmark = pytest.mark.tier("all")

WORKERS = ("--workers", "2")


@pytest.fixture(scope="class")
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with staged(request.cls.kind, *WORKERS, *HISTORY, *SEEN, RESTORE) as stage:
        yield stage


class TestPythonChannels(Resuming, Leaving, Crashing):
    kind = PYTHON
    flags = WORKERS
    # Presence and the list of subscriptions are in the store process.
    test_application_sets_the_presence_of_a_client = Acting.test_application_sets_the_presence_of_a_client
    test_unsubscribe_call_has_the_state_and_delivery_ends = Subscribing.test_unsubscribe_call_has_the_state_and_delivery_ends


@only(
    "restored_call_has_all_state_and_may_change_it",
    "each_resume_is_one_restored_call_and_the_end_one_disconnect_call",
    "connection_lost_during_the_restored_call_keeps_its_result",
    "disconnect_during_the_restored_call_is_called_after_it",
    "takeover_of_a_live_connection_makes_no_disconnect_call",
    "sid_of_another_user_does_not_resume_the_session",
    "client_that_leaves_during_the_connect_call_is_disconnected",
    "disconnect_call_includes_commands_that_end_after_the_client_left",
    "remote_disconnect_ends_all_sessions_of_the_user",
    "lost_session_is_disconnected_after_its_ttl",
    "stopping_server_disconnects_all_sessions",
    "crash_keeps_sessions_with_their_state_and_remote_disconnects",
)
class TestGrpc(Resuming, Leaving, Crashing):
    kind = GRPC
    flags = WORKERS
