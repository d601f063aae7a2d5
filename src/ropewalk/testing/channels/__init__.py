"""A cable on which authors of Python channels try them: the real engine and wire, without a network."""
