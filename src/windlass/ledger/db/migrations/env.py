"""Called by Alembic: runs the steps on the connection that `ledger.book` hands over."""

from __future__ import annotations

from alembic import context

from windlass.ledger import schema

context.configure(
    connection=context.config.attributes["connection"],
    target_metadata=schema.metadata,
    render_as_batch=True,  # SQLite changes a table by making it anew
)
with context.begin_transaction():
    context.run_migrations()
