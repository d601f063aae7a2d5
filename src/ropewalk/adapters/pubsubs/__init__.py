"""Carriers of registered messages between processes and nodes."""
