"""Broky's wire, without I/O: size-prefixed FlatBuffers to records and back. `broky.fbs` is the schema.

No library reads or writes frames here: the one for Python has no verifier, and it imports numpy wherever that is installed. The
code that `flatc` generates is the second opinion of the tests.
"""
