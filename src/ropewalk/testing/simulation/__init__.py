"""A deterministic simulation of several nodes over a bad network, checked against a naive model of the contract."""
