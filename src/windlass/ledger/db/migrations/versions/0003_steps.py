"""Results of pipeline steps by content."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    texts = (("pipeline", 128), ("step", 128), ("user", 256), ("owner", 64), ("run", 64),
             ("digest", 80), ("shared_parts", 64))  # fmt: skip
    op.create_table(
        "step_record",
        sa.Column("namespace", sa.String(64), primary_key=True),
        sa.Column("key", sa.String(64), primary_key=True),
        *(sa.Column(name, sa.String(length), nullable=False) for name, length in texts),
        *(sa.Column(name, sa.Integer, nullable=False) for name in ("position", "done")),
        *(
            sa.Column(name, sa.BigInteger, nullable=False)
            for name in ("expires", "started", "ended", "size")
        ),
        *(sa.Column(name, sa.Text, nullable=False) for name in ("value", "own_parts", "miss")),
    )
    op.create_index(
        "step_record_by_step", "step_record", ["namespace", "pipeline", "step", "ended"]
    )
    op.create_index("step_record_ended", "step_record", ["ended"])
    op.create_table(
        "step_parts",
        sa.Column("namespace", sa.String(64), primary_key=True),
        sa.Column("digest", sa.String(64), primary_key=True),
        sa.Column("body", sa.Text, nullable=False),
    )
