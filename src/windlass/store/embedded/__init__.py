"""The object API from one SQLite file. The design: docs/design/embedded-api.md."""
