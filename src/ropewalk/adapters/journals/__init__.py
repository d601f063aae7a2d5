"""The durable journal of registered messages, and the implementation that stores nothing."""
