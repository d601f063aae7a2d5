"""Each worker's share of the limits that are meant for a whole node and that a process can only keep for itself.

`--max_conn`, `--max_http_conn`, `--max_conn_per_user` and `--max_conn_per_address` are not among them: workers tell each other
how many connections they have.
"""

from dataclasses import replace

from ropewalk.app.settings import Settings


def share_of_worker(settings: Settings, workers: int) -> Settings:
    """What the application is asked to bear, and how fast clients come, does not grow with the number of workers. Shares
    are rounded up, so that nobody's is nothing; 0 stays "no limit"."""
    app, operations, limits = settings.app, settings.operations, settings.limits
    return replace(
        settings,
        app=replace(
            app,
            rpc_concurrency=_share(app.rpc_concurrency, workers),
            disconnect_rate=_share(app.disconnect_rate, workers),
            disconnect_backlog_size=_share(app.disconnect_backlog_size, workers),
        ),
        limits=replace(limits, conn_rate_per_address=_share(limits.conn_rate_per_address, workers)),
        operations=replace(operations, reconnect_rate=_share(operations.reconnect_rate, workers)),
    )


def _share(whole: int, workers: int) -> int:
    return -(-whole // workers)
