"""A ring: several nodes that keep streams, sessions and presence together, each shard on one of them."""
