"""Authenticators, built-in channels and applications: who may connect and what a channel does. None means: try the next."""
