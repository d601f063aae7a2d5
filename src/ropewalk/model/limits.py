"""Limits and timeouts of a session. Sizes are bytes, times are seconds, and 0 switches a limit off where that is possible."""

from msgspec import Struct


class Limits(Struct, frozen=True):
    max_pending: int = 1024 * 1024
    write_timeout: float = 30.0
    max_subscriptions: int = 256
    max_member_info: int = 4096
    command_rate: float = 100.0
    command_burst: int = 200
    command_backlog: float = 30.0
    sessions_ttl: float = 300.0
    presence_ttl: float = 15.0
    resume_timeout: float = 2.0
    ping_interval: float = 3.0
    ping_units: int = 1  # of a ping's timestamp, per second
    pong_timeout: float = 0.0
    max_stream_name: int = 512
    max_identifier: int = 2048
    max_payload: int = 1024 * 1024
    disconnect_mode: str = "auto"
    disconnect_rate: float = 100.0
    disconnect_backlog: int = 4096
