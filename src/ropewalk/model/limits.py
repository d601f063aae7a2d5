"""Limits and timeouts. Sizes are bytes, times are seconds, and 0 switches a limit off where that is possible.

A default that is also the default of a setting is written here, and the settings take it from here.
"""

from msgspec import Struct


class Limits(Struct, frozen=True):
    """Of a session. `tcp_…`: of one over TCP, where clients are programs that may have many streams."""

    max_pending: int = 1024 * 1024
    write_timeout: float = 30.0
    max_subscriptions: int = 256
    tcp_max_subscriptions: int = 16384
    max_member_info: int = 4096
    command_rate: float = 100.0
    tcp_command_rate: float = 5000.0
    command_burst: int = 200
    command_backlog: float = 30.0
    sessions_ttl: float = 300.0
    presence_ttl: float = 15.0
    resume_timeout: float = 2.0
    max_pending_history: int = 64 * 1024 * 1024  # of all sessions of a process
    archive_replay: int = 10_000  # messages of the archive in one answer
    ping_interval: float = 3.0
    ping_units: int = 1  # of a ping's timestamp, per second
    pong_timeout: float = 0.0
    max_stream_name: int = 512
    max_identifier: int = 2048
    max_payload: int = 1024 * 1024
    disconnect_mode: str = "auto"
    disconnect_rate: float = 100.0
    disconnect_backlog: int = 4096


class AppLimits(Struct, frozen=True):
    """Of calls to the application. Python channels have `threads` and a `timeout`; RPC has `concurrency`, the calls at once,
    and a `command_timeout` for a call with all its retries. Either waits at most `wait_timeout` until a call begins."""

    threads: int = 32
    timeout: float = 10.0
    concurrency: int = 28
    command_timeout: float = 3.0
    wait_timeout: float = 30.0


APP_LIMITS = AppLimits()


class JournalLimits(Struct, frozen=True):
    """Of a journal on disk. `shards` is for a new one. A shard's file ends at `segment_size`. Rows go after `retention` seconds
    and beyond `retention_size`, but wait for an archive and for consumers that moved within `consumer_ttl`, up to
    `hard_limit`."""

    shards: int = 16
    segment_size: int = 64 << 20
    retention: float = 7 * 86400.0
    retention_size: int = 16 << 30
    hard_limit: int = 64 << 30
    consumer_ttl: float = 7 * 86400.0
