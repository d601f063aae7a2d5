"""The durable record of what was registered, and the implementation without one."""
