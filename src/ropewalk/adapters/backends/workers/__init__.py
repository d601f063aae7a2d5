"""The memory backend of a node with several worker processes: a store process, and workers that reach it over a bus."""
