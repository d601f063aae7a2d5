"""What carries bytes between clients and sessions, and the HTTP doors beside them: one file each."""
