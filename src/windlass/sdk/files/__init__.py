"""Copies files between this machine and the replicas of a run."""
