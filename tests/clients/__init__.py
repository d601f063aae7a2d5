"""The JavaScript clients of others, unchanged, against our server."""
