"""Where streams, sessions and presence are kept."""
