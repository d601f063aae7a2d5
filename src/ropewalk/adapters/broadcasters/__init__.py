"""Endpoints that receive publications from outside, one file each. Bytes become publications or a clear refusal."""
