"""The API objects: structs, defaults, validation, schemas.

Pure: no I/O, no clock. All other packages of Windlass may import this one; it imports none of them.
Import the modules, not the names: `from windlass.kinds.types import meta, run`.
"""
