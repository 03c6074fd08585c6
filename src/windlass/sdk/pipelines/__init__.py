"""Pipelines in Python: steps whose results are kept by content."""
