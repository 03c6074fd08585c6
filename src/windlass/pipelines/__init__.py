"""Pipelines: steps over Runs and calls, cached by content."""
