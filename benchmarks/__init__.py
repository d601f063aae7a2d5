"""Benchmarks of the running server: `python -m benchmarks`, or `make bench`.

The rule: every figure is measured together with its floor, in the same run, by the same load, on the same machine.
"""
