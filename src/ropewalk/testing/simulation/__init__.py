"""A deterministic simulation of several nodes over an unreliable network, checked against a naive model of the contract."""
