"""Pure, synchronous decisions. Clock and randomness are passed in; nothing here knows sockets or event loops."""
