"""How publications come in from outside: one file a door. Bytes become publications, or a clear refusal."""
