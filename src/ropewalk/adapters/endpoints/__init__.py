"""Everything that listens: the shared port and its protocols, and the HTTP endpoints, one file each."""
