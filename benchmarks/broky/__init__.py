"""Broky, push and subscribe over TCP: against an echo, a relay, nats-server, and the WebSocket clients of the same server.

Every process is pinned to a core, which is part of the figure's details.
"""
