"""Staging of transactions: files that survive a crash, and Arrow for the rows that applications send."""
