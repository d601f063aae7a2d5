"""An application of Python channels inside the server's process: loads it, runs its handlers, reloads it."""

from ropewalk.adapters.apps.python.application import PythonApplication

__all__ = ["PythonApplication"]
