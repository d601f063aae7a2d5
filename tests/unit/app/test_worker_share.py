"""Limits that are meant for a whole node, divided among its workers."""

from dataclasses import replace

from ropewalk.app.settings.sections import AppSettings, LimitSettings, OperationsSettings, Settings
from ropewalk.app.worker_share import share_of_worker

WHOLE = Settings(
    app=AppSettings(rpc_concurrency=28, disconnect_rate=100, disconnect_backlog_size=4096, app_threads=32),
    limits=LimitSettings(max_conn=1000),
    operations=OperationsSettings(reconnect_rate=2000),
)


def test_what_the_application_and_the_network_bear_is_divided_and_the_rest_is_not() -> None:
    share = share_of_worker(WHOLE, 8)
    assert (share.app.rpc_concurrency, share.app.disconnect_rate, share.app.disconnect_backlog_size) == (4, 13, 512)
    assert share.operations.reconnect_rate == 250
    app, operations = WHOLE.app, WHOLE.operations
    whole_again = replace(
        share,
        app=replace(
            share.app,
            rpc_concurrency=app.rpc_concurrency,
            disconnect_rate=app.disconnect_rate,
            disconnect_backlog_size=app.disconnect_backlog_size,
        ),
        operations=replace(share.operations, reconnect_rate=operations.reconnect_rate),
    )
    assert whole_again == WHOLE


def test_no_share_is_nothing_and_no_limit_stays_none() -> None:
    small = replace(WHOLE, app=replace(WHOLE.app, rpc_concurrency=1, disconnect_rate=0))
    share = share_of_worker(small, 8)
    assert (share.app.rpc_concurrency, share.app.disconnect_rate) == (1, 0)


def test_one_worker_has_all_of_it() -> None:
    assert share_of_worker(WHOLE, 1) == WHOLE
