"""How the node is measured from outside: one file a format."""
