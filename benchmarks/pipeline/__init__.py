"""What lies behind the live path, measured: the journal, Spark's way through it, and the archive's cold reads.

The floor is Spark or Arrow alone with the same rows in the same run.
"""
