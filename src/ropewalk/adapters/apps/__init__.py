"""Who may connect and what a channel does: one file for each way to answer. None means: ask the next one."""
