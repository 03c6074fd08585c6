"""What users write and read: objects as structs, defaults, validation, schemas.

Pure: no I/O, no clock. Everything else in Windlass imports from here; this room imports nothing
of Windlass. Import the modules, not the names: `from windlass.kinds import run, meta`.
"""
