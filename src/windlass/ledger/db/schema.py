"""The tables of the ledger, for SQLite and PostgreSQL; changed only by `ledger.db.migrations`.

    interval, presence           written once, never changed: usage and existence of devices
    open_interval, open_presence current usage and existence; rows move over when they end
    party, device                users and hardware, by id: intervals are many
    price_list                   every list that was ever valid, whole
    gap                          intervals that were not observed completely
    override                     the user that let a queue continue beyond its budget
    queue_sample, fleet_sample   usage, lending and demand of queues and teams, sampled every
                                 minute; old rows are merged (`ledger.db.samples`)
    charge, daily, hardware      roll-ups of finished days: derived from the above, again
                                 when new data about such a day arrives late
    mark                         single numbers: observed until, settled until
    step_record, step_parts      results of pipeline steps by content, and what their keys are
                                 made of (`ledger.db.step_records`)
    study, trial                 hyperparameter studies and their trials (`ledger.db.study_records`)

Times are Unix seconds, money is nano (billionths of the currency), parts are millionths.
"""

from __future__ import annotations

from sqlalchemy import (
    BigInteger,
    Column,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    UniqueConstraint,
)

metadata = MetaData()
VERSION = "0004"
"""The last migration in `ledger.db.migrations`."""
# SQLite generates ids only in a column of type INTEGER.
Id = BigInteger().with_variant(Integer, "sqlite")

party = Table(
    "party", metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("uid", String(64), nullable=False),
    Column("team", String(64), nullable=False),
    Column("user", String(256), nullable=False),
    Column("run", String(64), nullable=False),
    Column("queue", String(256), nullable=False),
    Column("closed", Integer, nullable=False),
    UniqueConstraint("uid", "queue"),
    Index("party_team_run", "team", "run"),
)  # fmt: skip

device = Table(
    "device", metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("node", String(256), nullable=False),
    Column("name", String(128), nullable=False),
    Column("kind", String(64), nullable=False),
    Column("model", String(64), nullable=False),
    Column("node_class", String(64), nullable=False),
    UniqueConstraint("node", "name", "kind", "model", "node_class"),
)  # fmt: skip


def _interval_columns() -> list[Column[object]]:
    """The columns of an interval, open or ended."""
    return [
        Column("party", BigInteger, ForeignKey("party.id"), nullable=False),
        Column("device", BigInteger, ForeignKey("device.id"), nullable=False),
        Column("attempt", Integer, nullable=False),
        Column("role", String(64), nullable=False),
        Column("member", Integer, nullable=False),
        Column("started", BigInteger, nullable=False),
        Column("form", String(16), nullable=False),
        Column("part", BigInteger, nullable=False),
        Column("milli", BigInteger, nullable=False),
        Column("cpu", BigInteger, nullable=False),
        Column("memory", BigInteger, nullable=False),
        Column("pod", String(64), nullable=False),
    ]


interval = Table(
    "interval", metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    *_interval_columns(),
    Column("ended", BigInteger, nullable=False),
    Column("rate", BigInteger, nullable=False),
    Column("claim", BigInteger, nullable=False),
    UniqueConstraint("party", "attempt", "role", "member", "device", "started"),
    Index("interval_ended", "ended", "started"),
)  # fmt: skip

open_interval = Table(
    "open_interval", metadata,
    *_interval_columns(),
    UniqueConstraint("party", "attempt", "role", "member", "device", "started"),
)  # fmt: skip

presence = Table(
    "presence", metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("device", BigInteger, ForeignKey("device.id"), nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("rate", BigInteger, nullable=False),
    UniqueConstraint("device", "started"),
    Index("presence_ended", "ended", "started"),
)  # fmt: skip

open_presence = Table(
    "open_presence", metadata,
    Column("device", BigInteger, ForeignKey("device.id"), primary_key=True),
    Column("started", BigInteger, nullable=False),
)  # fmt: skip

price_list = Table(
    "price_list", metadata,
    Column("uid", String(64), primary_key=True),
    Column("name", String(256), nullable=False),
    Column("since", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=True),
    Column("body", Text, nullable=False),
)  # fmt: skip

gap = Table(
    "gap", metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("what", String(16), nullable=False),
    Column("subject", String(256), nullable=False),
    Column("team", String(64), nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("detail", Text, nullable=False),
    UniqueConstraint("what", "subject", "started"),
)  # fmt: skip

override = Table(
    "override", metadata,
    Column("id", Id, primary_key=True, autoincrement=True),
    Column("queue", String(256), nullable=False),
    Column("by", String(256), nullable=False),
    Column("at", BigInteger, nullable=False),
    Column("until", BigInteger, nullable=False),
    Column("reason", Text, nullable=False),
    UniqueConstraint("queue", "until", "reason", "by"),
)  # fmt: skip


def _sampled(*amounts: str) -> list[Column[object]]:
    """Each amount is in thousandths, times the seconds that it covers: rows can be added."""
    return [Column(name, BigInteger, nullable=False) for name in ("seconds", *amounts)]


queue_sample = Table(
    "queue_sample", metadata,
    Column("span", Integer, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    Column("queue", String(256), primary_key=True),
    Column("resource", String(128), primary_key=True),
    *_sampled("used", "borrowed", "lent", "waiting"),
)  # fmt: skip

fleet_sample = Table(
    "fleet_sample", metadata,
    Column("span", Integer, primary_key=True),
    Column("at", BigInteger, primary_key=True),
    Column("team", String(64), primary_key=True),
    Column("device", String(128), primary_key=True),
    *_sampled("present", "used", "measured", "borrowed", "lent", "waiting"),
)  # fmt: skip

charge = Table(
    "charge", metadata,
    Column("day", Integer, primary_key=True),
    Column("party", BigInteger, ForeignKey("party.id"), primary_key=True),
    Column("kind", String(64), primary_key=True),
    Column("model", String(64), primary_key=True),
    Column("form", String(16), primary_key=True),
    Column("held", BigInteger, nullable=False),
    Column("cpu", BigInteger, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
    Index("charge_party", "party"),
)  # fmt: skip

daily = Table(
    "daily", metadata,
    Column("day", Integer, primary_key=True),
    Column("team", String(64), primary_key=True),
    Column("user", String(256), primary_key=True),
    Column("queue", String(256), primary_key=True),
    Column("kind", String(64), primary_key=True),
    Column("model", String(64), primary_key=True),
    Column("form", String(16), primary_key=True),
    Column("held", BigInteger, nullable=False),
    Column("cpu", BigInteger, nullable=False),
    Column("memory", BigInteger, nullable=False),
    Column("cost", BigInteger, nullable=False),
)  # fmt: skip

hardware = Table(
    "hardware", metadata,
    Column("day", Integer, primary_key=True),
    Column("kind", String(64), primary_key=True),
    Column("model", String(64), primary_key=True),
    Column("present", BigInteger, nullable=False),
    Column("free", BigInteger, nullable=False),
    Column("homeless", BigInteger, nullable=False),
    Column("wall", BigInteger, nullable=False),
    Column("idle", BigInteger, nullable=False),
)  # fmt: skip

mark = Table(
    "mark", metadata,
    Column("name", String(64), primary_key=True),
    Column("value", BigInteger, nullable=False),
)  # fmt: skip

step_record = Table(
    "step_record", metadata,
    Column("namespace", String(64), primary_key=True),
    Column("key", String(64), primary_key=True),
    Column("pipeline", String(128), nullable=False),
    Column("step", String(128), nullable=False),
    Column("position", Integer, nullable=False),
    Column("user", String(256), nullable=False),
    Column("owner", String(64), nullable=False),
    Column("done", Integer, nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("run", String(64), nullable=False),
    Column("digest", String(80), nullable=False),
    Column("size", BigInteger, nullable=False),
    Column("value", Text, nullable=False),
    Column("shared_parts", String(64), nullable=False),
    Column("own_parts", Text, nullable=False),
    Column("miss", Text, nullable=False),
    Index("step_record_by_step", "namespace", "pipeline", "step", "ended"),
    Index("step_record_ended", "ended"),
)  # fmt: skip

step_parts = Table(
    "step_parts", metadata,
    Column("namespace", String(64), primary_key=True),
    Column("digest", String(64), primary_key=True),
    Column("body", Text, nullable=False),
)  # fmt: skip

study = Table(
    "study", metadata,
    Column("namespace", String(64), primary_key=True),
    Column("name", String(64), primary_key=True),
    Column("user", String(256), nullable=False),
    Column("created", BigInteger, nullable=False),
    Column("owner", String(64), nullable=False),
    Column("expires", BigInteger, nullable=False),
    Column("body", Text, nullable=False),
)  # fmt: skip

trial = Table(
    "trial", metadata,
    Column("namespace", String(64), primary_key=True),
    Column("study", String(64), primary_key=True),
    Column("number", Integer, primary_key=True),
    Column("state", String(16), nullable=False),
    Column("started", BigInteger, nullable=False),
    Column("ended", BigInteger, nullable=False),
    Column("run", String(64), nullable=False),
    Column("body", Text, nullable=False),
    Index("trial_by_state", "namespace", "study", "state"),
)  # fmt: skip
