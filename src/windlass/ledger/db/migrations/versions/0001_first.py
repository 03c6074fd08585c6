"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

_ID = sa.BigInteger().with_variant(sa.Integer, "sqlite")


def upgrade() -> None:
    _parties_and_devices()
    _intervals()
    _around()
    _roll_ups()


def _text(name: str, length: int) -> sa.Column[str]:
    return sa.Column(name, sa.String(length), nullable=False)


def _number(name: str) -> sa.Column[int]:
    return sa.Column(name, sa.BigInteger, nullable=False)


def _id() -> sa.Column[int]:
    return sa.Column("id", _ID, primary_key=True, autoincrement=True)


def _parties_and_devices() -> None:
    op.create_table(
        "party", _id(), _text("uid", 64), _text("team", 64), _text("user", 256), _text("run", 64),
        _text("queue", 256), sa.Column("closed", sa.Integer, nullable=False),
        sa.UniqueConstraint("uid", "queue"),
    )  # fmt: skip
    op.create_index("party_team_run", "party", ["team", "run"])
    op.create_table(
        "device", _id(), _text("node", 256), _text("name", 128), _text("kind", 64),
        _text("model", 64), _text("node_class", 64),
        sa.UniqueConstraint("node", "name", "kind", "model", "node_class"),
    )  # fmt: skip


def _interval_cols() -> list[sa.Column[Any]]:
    return [
        sa.Column("party", sa.BigInteger, sa.ForeignKey("party.id"), nullable=False),
        sa.Column("device", sa.BigInteger, sa.ForeignKey("device.id"), nullable=False),
        sa.Column("attempt", sa.Integer, nullable=False),
        sa.Column("role", sa.String(64), nullable=False),
        sa.Column("member", sa.Integer, nullable=False),
        sa.Column("started", sa.BigInteger, nullable=False),
        sa.Column("form", sa.String(16), nullable=False),
        *(sa.Column(name, sa.BigInteger, nullable=False)
          for name in ("part", "milli", "cpu", "memory")),
        sa.Column("pod", sa.String(64), nullable=False),
    ]  # fmt: skip


def _intervals() -> None:
    key = ("party", "attempt", "role", "member", "device", "started")
    op.create_table(
        "interval", _id(), *_interval_cols(), _number("ended"), _number("rate"), _number("claim"),
        sa.UniqueConstraint(*key),
    )  # fmt: skip
    op.create_index("interval_ended", "interval", ["ended", "started"])
    op.create_table("open_interval", *_interval_cols(), sa.UniqueConstraint(*key))
    device = sa.Column("device", sa.BigInteger, sa.ForeignKey("device.id"), nullable=False)
    op.create_table(
        "presence", _id(), device, _number("started"), _number("ended"), _number("rate"),
        sa.UniqueConstraint("device", "started"),
    )  # fmt: skip
    op.create_index("presence_ended", "presence", ["ended", "started"])
    op.create_table(
        "open_presence",
        sa.Column("device", sa.BigInteger, sa.ForeignKey("device.id"), primary_key=True),
        _number("started"),
    )


def _around() -> None:
    op.create_table(
        "price_list", sa.Column("uid", sa.String(64), primary_key=True), _text("name", 256),
        _number("since"), sa.Column("until", sa.BigInteger, nullable=True),
        sa.Column("body", sa.Text, nullable=False),
    )  # fmt: skip
    op.create_table(
        "gap", _id(), _text("what", 16), _text("subject", 256), _text("team", 64),
        _number("started"), _number("ended"), sa.Column("detail", sa.Text, nullable=False),
        sa.UniqueConstraint("what", "subject", "started"),
    )  # fmt: skip
    op.create_table(
        "override", _id(), _text("queue", 256), _text("by", 256), _number("at"), _number("until"),
        sa.Column("reason", sa.Text, nullable=False),
        sa.UniqueConstraint("queue", "until", "reason", "by"),
    )  # fmt: skip
    op.create_table(
        "sample", sa.Column("at", sa.BigInteger, primary_key=True),
        sa.Column("queue", sa.String(256), primary_key=True),
        sa.Column("resource", sa.String(128), primary_key=True),
        *(_number(name) for name in ("used", "borrowed", "lent", "waiting")),
    )  # fmt: skip
    op.create_table("mark", sa.Column("name", sa.String(64), primary_key=True), _number("value"))


def _roll_ups() -> None:
    what = [("kind", 64), ("model", 64), ("form", 16)]
    day = sa.Column("day", sa.Integer, primary_key=True)
    op.create_table(
        "charge", day,
        sa.Column("party", sa.BigInteger, sa.ForeignKey("party.id"), primary_key=True),
        *(sa.Column(name, sa.String(size), primary_key=True) for name, size in what),
        *(_number(name) for name in ("held", "cpu", "memory", "cost")),
    )  # fmt: skip
    op.create_index("charge_party", "charge", ["party"])
    party = [("team", 64), ("user", 256), ("queue", 256)]
    op.create_table(
        "daily", sa.Column("day", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.String(size), primary_key=True) for name, size in (*party, *what)),
        *(_number(name) for name in ("held", "cpu", "memory", "cost")),
    )  # fmt: skip
    op.create_table(
        "hardware", sa.Column("day", sa.Integer, primary_key=True),
        *(sa.Column(name, sa.String(size), primary_key=True) for name, size in what[:2]),
        *(_number(name) for name in ("present", "free", "homeless", "wall", "idle")),
    )  # fmt: skip
