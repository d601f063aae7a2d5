"""Transports between clients and sessions, and the other HTTP endpoints, one file each."""
