"""The window: pages that show the node, which they see through ports only."""
