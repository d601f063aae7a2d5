"""Adapters to the outside, by role, one library each. They use the ports, never the engine and never each other."""
