"""What the result of a step depends on, as digests by name. Pure; the standard library only.

`code_references` finds what a function refers to, `collector` follows these references through
functions, classes, modules and values, and `step_key` makes the cache key of a step.
"""
