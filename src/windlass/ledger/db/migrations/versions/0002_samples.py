"""Samples of teams and device models; samples of queues get a duration."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

_EVERY = 300
"""Seconds between two samples before this migration."""


def upgrade() -> None:
    amounts = ("used", "borrowed", "lent", "waiting")
    _table("queue_sample", (("queue", 256), ("resource", 128)), amounts)
    _table(
        "fleet_sample",
        (("team", 64), ("device", 128)),
        ("present", "used", "measured", *amounts[1:]),
    )
    times = ", ".join(f"{name} * {_EVERY}" for name in amounts)
    op.execute(
        f"INSERT INTO queue_sample (span, at, queue, resource, seconds, {', '.join(amounts)}) "  # noqa: S608
        f"SELECT 60, at, queue, resource, {_EVERY}, {times} FROM sample"
    )
    op.drop_table("sample")


def _table(name: str, keys: tuple[tuple[str, int], ...], amounts: tuple[str, ...]) -> None:
    op.create_table(
        name,
        sa.Column("span", sa.Integer, primary_key=True),
        sa.Column("at", sa.BigInteger, primary_key=True),
        *(sa.Column(key, sa.String(size), primary_key=True) for key, size in keys),
        *(sa.Column(each, sa.BigInteger, nullable=False) for each in ("seconds", *amounts)),
    )
