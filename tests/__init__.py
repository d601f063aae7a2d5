"""The tests. `unit` mirrors the source; the others look at a running server from outside."""
