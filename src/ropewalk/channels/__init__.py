"""Channels in Python: an application that runs inside the server. `ropewalk` exports the part that authors use.

This package takes records and returns records: it opens no connection and starts no thread. `ropewalk.adapters.apps.python`
runs it.
"""

from ropewalk.channels.app import App
from ropewalk.channels.channel import Channel, Connection, action
from ropewalk.channels.handlers import ActionError, BadCall, Reject, Runner, inline

__all__ = ["ActionError", "App", "BadCall", "Channel", "Connection", "Reject", "Runner", "action", "inline"]
