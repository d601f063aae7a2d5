"""What lies behind the live path, measured: the journal, Spark's way through it, and the archive's cold reads.

The rule: whatever can be done by Spark or Arrow alone is the floor, and both do the same rows in the same run.
"""
