"""Broadcasters: bring publications in from where applications leave them (Redis Streams, Redis channels, NATS subjects)."""
