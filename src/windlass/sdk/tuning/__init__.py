"""Hyperparameter tuning: studies whose trials are calls in workers, or runs."""
