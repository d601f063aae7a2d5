"""The backends of a cluster, measured: memory, Redis and NATS, each against a bare client of the same engine.

The rule: the bare client does the same work on the same server in the same run, one publication a call.
"""
