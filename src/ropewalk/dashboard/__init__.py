"""The demo page."""
