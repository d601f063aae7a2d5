"""The wire: bytes to commands and replies to bytes. No I/O, no clock, no library of a transport."""
