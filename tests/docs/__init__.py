"""The documentation: links resolve, commands work, tables agree with the code."""
