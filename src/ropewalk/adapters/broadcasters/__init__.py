"""Broadcasters: receive publications over Redis Streams, Redis channels and NATS subjects."""
