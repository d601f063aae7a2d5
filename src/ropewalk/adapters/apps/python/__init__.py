"""An application of Python channels inside the server's process: loading it, running its handlers, reloading it."""

from ropewalk.adapters.apps.python.application import PythonApplication

__all__ = ["PythonApplication"]
