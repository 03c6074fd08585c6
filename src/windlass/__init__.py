"""Windlass: one shared AI/ML platform from a mix of machines.

Importing this module loads nothing heavy: `windlass --help` must feel instant.
"""

__version__ = "0.1.0"
