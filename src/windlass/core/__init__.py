"""Decisions: pure functions from a snapshot of the cluster to what should happen next.

No I/O, no clock, no randomness; amounts are integers. The live scheduler, dry runs and the
simulator all call the same `decide`.
"""
