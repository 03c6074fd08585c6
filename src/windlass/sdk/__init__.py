"""The Python API: the command line and programs use it to submit and follow runs.

It depends on the kinds and the client of the store, not on servers or engines.
"""
