"""Ropewalk: a real-time message server with reliable streams, resumable sessions and presence."""

__version__ = "0.1.0"
