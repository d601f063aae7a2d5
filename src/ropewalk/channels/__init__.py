"""Channels in Python: an application that runs inside the server. What `ropewalk` itself exports of it is for authors.

This package takes records and returns records: it opens no connection and starts no thread. `ropewalk.adapters.apps.python`
runs it.
"""

from ropewalk.channels.actions import action
from ropewalk.channels.app import App
from ropewalk.channels.channel import Channel
from ropewalk.channels.connection import Connection
from ropewalk.channels.errors import ActionError, BadCall, Reject
from ropewalk.channels.runner import Runner, inline

__all__ = ["ActionError", "App", "BadCall", "Channel", "Connection", "Reject", "Runner", "action", "inline"]
