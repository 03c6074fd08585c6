"""The version of Windlass: set here, read by the build (pyproject.toml) and by all modules."""

VERSION = "0.1.0"
