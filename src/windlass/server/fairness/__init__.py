"""Fairness between the callers of the server: priority levels, queues per caller, limits."""
