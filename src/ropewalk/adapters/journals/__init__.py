"""The durable record of what was registered, and its absence."""
