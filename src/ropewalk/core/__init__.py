"""The decisions: synchronous and pure. The clock and chance are passed in; nothing here knows of sockets or loops."""
