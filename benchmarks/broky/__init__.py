"""Broky, push and subscribe over TCP: against an echo, a relay, nats-server, and the WebSocket clients of the same server.

The rule: every process is pinned to a core, and the figures say to which.
"""
