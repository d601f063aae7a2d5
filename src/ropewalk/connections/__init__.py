"""Connections to engines that several adapters use: how they are opened, and which defaults of their clients are off."""
