"""Python channels inside the server process."""
