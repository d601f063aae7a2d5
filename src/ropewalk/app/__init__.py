"""The only place that knows both sides: settings, logs and the wiring of one server."""
