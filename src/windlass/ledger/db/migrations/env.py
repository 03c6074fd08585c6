"""Called by Alembic: runs migrations on the connection that `ledger.db.repository` passes."""

from __future__ import annotations

from alembic import context

from windlass.ledger.db import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    render_as_batch=True,  # SQLite changes a table by making a new one
)
with context.begin_transaction():
    context.run_migrations()
