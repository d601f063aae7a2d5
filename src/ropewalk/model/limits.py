"""Limits and timeouts. Sizes are bytes, times are seconds, and 0 switches a limit off where that is possible.

A default that is also the default of a setting is written here, and the settings take it from here.
"""

from msgspec import Struct

NAME_TEXT_GROWTH = 8
"""Maximum growth factor of a stream's name in an identifier: control characters are escaped, and a signed name is base64 of
that."""

IDENTIFIER_OVERHEAD_BYTES = 256
"""Bytes of an identifier beside the stream's name: the channel's name and the signature."""

MIN_IDLE_SECONDS = 30.0
"""Minimum seconds that a stream without history is kept, so that it outlives reconnects of its clients."""


class Limits(Struct, frozen=True):
    """Limits of a session. Any name that `max_stream_name` allows fits into an identifier. `tcp_…`: of one over TCP, where
    clients are programs with many streams."""

    max_pending: int = 1024 * 1024
    write_timeout: float = 30.0
    max_conn_per_user: int = 4096
    max_conn_per_address: int = 16384
    conn_rate_per_address: float = 500.0
    max_subscriptions: int = 256
    tcp_max_subscriptions: int = 16384
    max_member_info: int = 4096
    command_rate: float = 100.0
    tcp_command_rate: float = 5000.0
    command_burst: int = 200
    command_backlog: float = 30.0
    max_whisper: int = 16 * 1024
    whisper_rate: float = 64 * 1024  # bytes a second of one session
    sessions_ttl: float = 300.0
    presence_ttl: float = 15.0
    resume_timeout: float = 2.0
    max_pending_history: int = 64 * 1024 * 1024  # of all sessions of a process
    archive_replay: int = 10_000  # messages of the archive in one answer
    slice_writes: int = 256  # deliveries in one turn of the event loop: about 2 ms
    ping_interval: float = 3.0
    ping_units: int = 1  # of a ping's timestamp, per second
    pong_timeout: float = 0.0
    max_stream_name: int = 512
    max_identifier: int = 5 * 1024
    max_payload: int = 1024 * 1024
    disconnect_mode: str = "auto"
    disconnect_rate: float = 100.0
    disconnect_backlog: int = 4096


class StoreLimits(Struct, frozen=True):
    """Limits of a store of streams, sessions and presence.

    Args:
        dedup_ttl: how long the uid of a publication is remembered.
        dedup_limit: maximum number of remembered uids; the oldest are dropped first.
        idle_factor: history TTLs after which an idle stream is forgotten.
        presence_ttl: how long members stay present after their node ended.
        max_members: of one stream.
        sessions_limit: maximum number of sessions that are kept without a connection.
        max_session_size: of a session that can be resumed.
        max_sessions_size: of all sessions that are kept without a connection.
    """

    dedup_ttl: float = 300.0
    dedup_limit: int = 100_000
    idle_factor: float = 10.0
    presence_ttl: float = 15.0
    max_members: int = 10_000
    sessions_limit: int = 200_000
    max_session_size: int = 128 * 1024
    max_sessions_size: int = 256 * 1024 * 1024

    def idle_ttl(self, history_ttl: float) -> float:
        """After how long without publications a stream is forgotten. It outlives its own history."""
        return max(1.0, self.idle_factor) * max(history_ttl, self.dedup_ttl, MIN_IDLE_SECONDS)


STORE_LIMITS = StoreLimits()


class AppLimits(Struct, frozen=True):
    """Limits of calls to the application.

    Args:
        threads: for handlers of Python channels that are plain functions.
        timeout: of a call to Python channels.
        concurrency: RPC calls at once.
        command_timeout: of an RPC call with all its retries.
        request_timeout: of one attempt of an RPC call; 0 for no limit but `command_timeout`.
        wait_timeout: how long a call may wait before it begins.
        queue: how many calls may wait.
    """

    threads: int = 32
    timeout: float = 10.0
    concurrency: int = 28
    command_timeout: float = 3.0
    request_timeout: float = 0.0
    wait_timeout: float = 30.0
    queue: int = 10_000


APP_LIMITS = AppLimits()


class JournalLimits(Struct, frozen=True):
    """Limits of a journal on disk.

    Args:
        shards: number of shards of a new journal.
        segment_size: at which a shard begins a new file.
        retention: how long rows are kept.
        retention_size: of all rows; beyond it the oldest are deleted.
        hard_limit: of all rows, including those that the archive or an active consumer has not read yet.
        consumer_ttl: after which a consumer without progress is no longer active.
        for_archive: rows that are not archived are kept until the hard limit.
        segment_seconds: after which a shard begins a new file.
        queue_size: of rows that wait to be written.
        tips_seconds: after which the end of a stream without publications is forgotten.
    """

    shards: int = 16
    segment_size: int = 64 << 20
    retention: float = 7 * 86400.0
    retention_size: int = 16 << 30
    hard_limit: int = 64 << 30
    consumer_ttl: float = 7 * 86400.0
    for_archive: bool = True
    segment_seconds: float = 3600.0
    queue_size: int = 64 << 20
    tips_seconds: float = 30 * 86400.0
