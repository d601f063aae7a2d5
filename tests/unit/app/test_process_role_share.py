"""Limits of a node, divided among its workers."""

from dataclasses import replace

from ropewalk.app.process_role import share_of_worker
from ropewalk.app.settings.sections import AppSettings, LimitSettings, OperationsSettings, Settings

NODE = Settings(
    app=AppSettings(rpc_concurrency=28, disconnect_rate=100, disconnect_backlog_size=4096, app_threads=32),
    limits=LimitSettings(max_conn=1000, conn_rate_per_address=500),
    operations=OperationsSettings(reconnect_rate=2000),
)


def test_rates_and_concurrency_are_divided_and_other_settings_are_not() -> None:
    share = share_of_worker(NODE, 8)
    assert (share.app.rpc_concurrency, share.app.disconnect_rate, share.app.disconnect_backlog_size) == (4, 13, 512)
    assert (share.operations.reconnect_rate, share.limits.conn_rate_per_address) == (250, 63)
    app, operations = NODE.app, NODE.operations
    restored = replace(
        share,
        app=replace(
            share.app,
            rpc_concurrency=app.rpc_concurrency,
            disconnect_rate=app.disconnect_rate,
            disconnect_backlog_size=app.disconnect_backlog_size,
        ),
        operations=replace(share.operations, reconnect_rate=operations.reconnect_rate),
        limits=replace(share.limits, conn_rate_per_address=500),
    )
    assert restored == NODE


def test_share_is_at_least_one_and_no_limit_stays_unlimited() -> None:
    small = replace(NODE, app=replace(NODE.app, rpc_concurrency=1, disconnect_rate=0))
    share = share_of_worker(small, 8)
    assert (share.app.rpc_concurrency, share.app.disconnect_rate) == (1, 0)


def test_single_worker_gets_the_whole() -> None:
    assert share_of_worker(NODE, 1) == NODE
