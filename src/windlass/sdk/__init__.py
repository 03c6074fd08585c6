"""The Python API: what the command line and programs use to hand in work and follow it.

Knows the kinds and the store's client protocol, nothing of servers or engines.
"""
