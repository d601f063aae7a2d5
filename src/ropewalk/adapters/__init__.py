"""The outside, one library each, by role. Adapters know the ports, never the engine and never each other."""
