"""The documentation as a reader would use it: links lead somewhere, commands work, tables agree with the code."""
