"""Conformance suites for the ports, shipped so that others can test their own adapters.

They are pytest classes: inherit one, fill its hooks, and let pytest-asyncio run it in auto mode.
"""
