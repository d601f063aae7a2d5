"""Reasons why the server refused, dropped or ended something, counted in `ropewalk_refusals_total{reason=…}`."""

from enum import StrEnum


class Refusal(StrEnum):
    """In alphabetical order. docs/reference/metrics.md explains each to operators."""

    APP_QUEUE = "app_queue"
    """A call to the application that was not made: too many waited, or it waited for longer than `--app_wait_timeout`."""

    BACKLOG = "backlog"
    """A connection that stayed above `--command_rate`, or `--tcp_command_rate`, for longer than `--command_backlog`."""

    BAD_BODY = "bad_body"
    """An HTTP body that is not encoded or compressed as its headers say, or in a compression that is not understood."""

    BAD_FRAME = "bad_frame"
    """A WebSocket or TCP frame, or a message, that cannot be read."""

    BAD_KEY = "bad_key"
    """An HTTP request without the key that its endpoint asks for."""

    BODY_TIMEOUT = "body_timeout"
    """An HTTP body that was not sent whole in time."""

    BODY_TOO_LARGE = "body_too_large"
    """An HTTP body beyond its limit, as sent or once it was inflated."""

    CHUNKS = "chunks"
    """A chunked HTTP body with more framing than body: tiny chunks, long chunk extensions, endless trailers."""

    CONNECTIONS = "connections"
    """A connection beyond `--max_conn` or `--max_http_conn`."""

    DESCRIPTORS = "descriptors"
    """A connection for which the limit of open files leaves no place."""

    FRAGMENTS = "fragments"
    """A WebSocket message in too many fragments."""

    HANDSHAKE = "handshake"
    """A TLS handshake that failed or did not end in time."""

    HEAD_TIMEOUT = "head_timeout"
    """A connection that did not send a whole head of a request in time, the first one or a further one."""

    IDENTIFIER = "identifier"
    """A subscription identifier that is too long."""

    IDLE = "idle"
    """A kept-alive HTTP connection that was not used again in time."""

    MEMBER_ID = "member_id"
    """A client that wanted to be present under another id than the one the application gave it."""

    MESSAGE_TOO_BIG = "message_too_big"
    """A WebSocket message beyond `--max_message_size`, or a TCP frame beyond its limit."""

    NESTING = "nesting"
    """JSON that is nested too deeply."""

    ORIGIN = "origin"
    """A browser page of an origin that is not in `--allowed_origins`."""

    OUTBOX_FULL = "outbox_full"
    """A connection that was closed because more waited for it than `--ws_max_pending_size`, or because others waited for their
    history."""

    PONG_TIMEOUT = "pong_timeout"
    """A client that left pings unanswered for `--pong_timeout`."""

    SESSION_SIZE = "session_size"
    """A session that was not kept for resuming because it is larger than `--max_session_size`."""

    SESSIONS_FULL = "sessions_full"
    """A kept session that was given up for newer ones because all of them together are larger than `--max_sessions_size`."""

    SUBSCRIPTIONS = "subscriptions"
    """A subscription beyond `--max_subscriptions`, or `--tcp_max_subscriptions`."""

    UNUSABLE_COMMAND = "unusable_command"
    """A command of a client that is unknown, or lacks what it needs."""

    WRITE_TIMEOUT = "write_timeout"
    """A connection that took nothing of what waited for it for `--ws_write_timeout`."""
