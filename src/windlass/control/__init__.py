"""Controllers: the runtime they share, one reconciler per kind, and the scheduler's loop.

Everything here speaks to the object API through the `Store` protocol and runs unchanged on both
engines. `control.manager` puts the parts together.
"""
