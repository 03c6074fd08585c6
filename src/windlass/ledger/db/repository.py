"""The ledger's database: opened, upgraded, written. All writes go through this module.

`write` gets everything that is known of a party (a Run or an external pod): ended and open
intervals. Ended intervals are cut where a price changed, get their rates and are inserted once;
repeated input changes nothing. Open intervals replace those of the call before. Each call is one
transaction. Nothing here is asynchronous: `ledger.ingest.recorder` calls it in a thread.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import sqlalchemy as sa

from windlass.kinds.types import pricelist
from windlass.kinds.values import times
from windlass.ledger.db import bulk, copies, schema
from windlass.ledger.model import DAY, Device, Gap, Hold, Member, Party, Presence
from windlass.ledger.pricing import cost_allocation, price_list
from windlass.ledger.pricing.price_list import Prices

SETTLED, PRUNED, FORGOTTEN = "settled", "pruned", "forgotten"
OBSERVED, BEGUN = "observed", "begun"
_AT_ONCE = 500
"""Values in one list of a query: SQLite allows some thousands."""
T = TypeVar("T")
Row = Any
"""A row of a query, by the names of its columns."""
_KEY = ("party", "attempt", "role", "member", "device", "started")
_HELD = (*_KEY, "form", "part", "milli", "cpu", "memory", "pod")
_ENDED = ("ended", "rate", "claim")
_MOST_PARTIES = 100_000
"""The most parties of which the ids are cached."""
Columns = tuple[Any, ...]
"""The values of `_HELD`; the first of them are the key."""


class LedgerError(Exception):
    """The ledger cannot be used; the message gives the reason to users."""


class LedgerRepository:
    """One database."""

    def __init__(self, engine: sa.Engine) -> None:
        self.engine = engine
        self._parties: dict[str, dict[str, int]] = {}
        """The ids of parties by uid and queue."""
        self._devices: dict[Device, int] = {}
        self._prices: Prices | None = None
        self._pricing = threading.Lock()
        """A reader of prices must not cache the lists of before while one is added."""

    @staticmethod
    def open(url: str) -> LedgerRepository:
        """Creates the tables, or upgrades them."""
        # Progress messages of SQLAlchemy and Alembic are of no use in the server's log.
        logging.getLogger("alembic").setLevel(logging.WARNING)
        try:
            engine = _engine(url)
            with engine.connect() as connection:
                _upgrade(connection)
        except sa.exc.SQLAlchemyError as problem:
            shown = sa.make_url(url).render_as_string(hide_password=True)
            raise LedgerError(
                f"the ledger {shown} cannot be opened: {_short(problem)}; check the address, that "
                "the database is there and that its user may make tables"
            ) from problem
        return LedgerRepository(engine)

    def close(self) -> None:
        self.engine.dispose()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sa.Connection]:
        """One transaction for all queries of an answer: an interval that ends meanwhile is neither
        missing nor counted twice."""
        with self.engine.connect() as connection:
            if self.engine.dialect.name == "sqlite":
                connection.exec_driver_sql("BEGIN")
            else:
                connection.execution_options(isolation_level="REPEATABLE READ")
            yield connection

    # --- intervals

    def write(self, holds_by_party: Mapping[str, Sequence[Hold]], now: int) -> int:
        """Everything that is known of these parties, by uid. Returns how many intervals are new."""
        prices = self.prices()
        with self._begin() as connection:
            self._know(connection, holds_by_party)
            known = self._open_rows(connection, list(holds_by_party))
            ended: list[Columns] = []
            open_: list[Columns] = []
            touched: list[int] = []
            for uid, holds in holds_by_party.items():
                before = known.get(uid, {})
                mine: list[Columns] = []
                for hold in holds:
                    row = self._row(hold, before)
                    was_open = before.pop(row[: len(_KEY)], None) is not None
                    if hold.ended is None:
                        open_.append(row)
                        touched += () if was_open else (hold.started,)
                    else:
                        mine += _pieces(row, hold, prices)
                        touched.append(hold.ended if was_open else hold.started)
                touched += [key[-1] for key in before]  # no longer open, and without an end
                ended += self._unwritten(connection, uid, mine)
            new = bulk.insert(connection, schema.interval, (*_HELD, *_ENDED), ended)
            self._replace_open(connection, list(known), open_)
            self._unsettle(connection, min(touched, default=now))
        return new

    def settle_parties(self, uids: Sequence[str]) -> None:
        """Marks these parties as complete: no more intervals follow."""
        with self._begin() as connection:
            for chunk in _chunks(uids):
                table = schema.party
                connection.execute(table.update().where(table.c.uid.in_(chunk)).values(closed=1))

    def closed(self, uids: Sequence[str]) -> set[str]:
        """The parties among these that are complete."""
        found: set[str] = set()
        with self.engine.connect() as connection:
            for chunk in _chunks(uids):
                table = schema.party
                query = sa.select(table.c.uid).where(table.c.uid.in_(chunk), table.c.closed == 1)
                found |= {row[0] for row in connection.execute(query)}
        return found

    def close_open(self, ends: Mapping[str, int], now: int) -> list[Hold]:
        """Ends all open intervals of these parties, at the latest at the given moments; returns
        them."""
        held = [
            dataclasses.replace(hold, ended=max(hold.started, ends[hold.party.uid]))
            for hold in self.open_holds(list(ends))
        ]
        holds_by_party: dict[str, list[Hold]] = {uid: [] for uid in ends}
        for hold in held:
            holds_by_party[hold.party.uid].append(hold)
        self.write(holds_by_party, now)
        return held

    def open_holds(self, uids: Sequence[str] | None = None) -> list[Hold]:
        """The open intervals of these parties, or of all."""
        found = []
        with self.engine.connect() as connection:
            for chunk in _chunks(uids) if uids is not None else [None]:
                query = select_open()
                if chunk is not None:
                    query = query.where(schema.party.c.uid.in_(chunk))
                found += [hold_of(row) for row in connection.execute(query).mappings()]
        return found

    # --- presence

    def observe(
        self,
        devices: Iterable[Device],
        now: int,
        last_seen: Mapping[str, int],
        since: Mapping[str, int] | None = None,
    ) -> None:
        """Exactly these devices exist now. By node: when a removed device was last seen
        (`last_seen`) and when a new one appeared (`since`), if that is not now."""
        prices = self.prices()
        with self._begin() as connection:
            wanted = set(devices)
            self._know_devices(connection, wanted)
            ids = {self._devices[each]: each for each in wanted}
            rows = connection.execute(
                sa.select(schema.open_presence, schema.device)
                .join(schema.device, schema.device.c.id == schema.open_presence.c.device)
            ).mappings()  # fmt: skip
            known, nodes, ended, touched = set(), set(), [], []
            for row in list(rows):
                number = row["device"]
                known.add(number)
                nodes.add(row["node"])
                if number in ids:
                    continue
                end = max(row["started"], last_seen.get(row["node"], now))
                ended += [
                    {"device": number, "started": a, "ended": b,
                     "rate": prices.wall(device_of(row), a)}
                    for a, b in prices.cuts(row["started"], end) if a < b
                ]  # fmt: skip
                touched.append(end)
                connection.execute(
                    schema.open_presence.delete().where(schema.open_presence.c.device == number)
                )
            bulk.insert_named(connection, schema.presence, ended)
            # A device that is added to a node is new now, whenever the node was created.
            joined_at = {name: at for name, at in (since or {}).items() if name not in nodes}
            fresh = [
                {"device": number, "started": min(now, joined_at.get(each.node, now))}
                for number, each in ids.items()
                if number not in known
            ]
            touched += [row["started"] for row in fresh]
            bulk.insert_named(connection, schema.open_presence, fresh)
            self._unsettle(connection, min(touched, default=now))

    def present(self) -> list[Presence]:
        """The devices that exist now."""
        query = sa.select(schema.open_presence.c.started, schema.device).join(
            schema.device, schema.device.c.id == schema.open_presence.c.device
        )
        with self.engine.connect() as connection:
            return [
                Presence(device_of(row), row["started"], None)
                for row in connection.execute(query).mappings()
            ]

    # --- prices

    def prices(self) -> Prices:
        with self._pricing:
            if self._prices is None:
                with self.engine.connect() as connection:
                    rows = connection.execute(sa.select(schema.price_list)).mappings().all()
                self._prices = Prices(_version(row) for row in rows)
            return self._prices

    def list_prices(self, lists: Iterable[pricelist.PriceList], now: int) -> None:
        """Exactly these price lists exist. A list is valid from its time on, but not before it was
        created; a deleted list is no longer valid, and its past stays."""
        wanted = {each.uid: each for each in lists}
        with self._pricing, self._begin() as connection:
            rows = connection.execute(sa.select(schema.price_list)).mappings().all()
            known = {row["uid"]: row for row in rows}
            fresh = [_price_row(each, now) for uid, each in wanted.items() if uid not in known]
            gone = [u for u, row in known.items() if row["until"] is None and u not in wanted]
            bulk.insert_named(connection, schema.price_list, fresh)
            for uid in gone:
                until = max(now, known[uid]["since"])
                table = schema.price_list
                connection.execute(table.update().where(table.c.uid == uid).values(until=until))
            if fresh or gone:
                self._prices = None

    # --- marks, gaps and overrides

    def note_gap(self, gap: Gap) -> None:
        with self._begin() as connection:
            bulk.insert_named(connection, schema.gap, [dataclasses.asdict(gap)])

    def note_override(self, row: Mapping[str, Any]) -> bool:
        """Returns whether it is new."""
        with self._begin() as connection:
            return bool(bulk.insert_named(connection, schema.override, [dict(row)]))

    def get_mark(self, name: str) -> int | None:
        with self.engine.connect() as connection:
            return _mark(connection, name)

    def set_mark(self, name: str, value: int) -> None:
        with self._begin() as connection:
            _set_mark(connection, name, value)

    # --- parts

    @contextlib.contextmanager
    def _begin(self) -> Iterator[sa.Connection]:
        """A transaction; ids that were cached in it are dropped if it fails."""
        try:
            with self.engine.begin() as connection:
                yield connection
        except BaseException:
            self._parties.clear()
            self._devices.clear()
            raise

    def _know(
        self, connection: sa.Connection, holds_by_party: Mapping[str, Sequence[Hold]]
    ) -> None:
        """Caches the ids of these parties and of their devices."""
        holds = [hold for each in holds_by_party.values() for hold in each]
        self._know_devices(connection, {hold.device for hold in holds})
        if len(self._parties) > _MOST_PARTIES:
            self._parties.clear()
        unknown = {
            (hold.party.uid, hold.party.queue): hold.party
            for hold in holds
            if hold.party.queue not in self._parties.get(hold.party.uid, ())
        }
        rows = [{**dataclasses.asdict(each), "closed": 0} for each in unknown.values()]
        bulk.insert_named(connection, schema.party, rows)
        missing_uids = {uid for uid, _ in unknown} | {
            uid for uid in holds_by_party if uid not in self._parties
        }
        for chunk in _chunks(sorted(missing_uids)):
            table = schema.party
            query = sa.select(table.c.uid, table.c.queue, table.c.id).where(table.c.uid.in_(chunk))
            for uid, name, number in connection.execute(query):
                self._parties.setdefault(uid, {})[name] = number

    def _know_devices(self, connection: sa.Connection, devices: Iterable[Device]) -> None:
        unknown = set(devices) - self._devices.keys()
        if not unknown:
            return
        bulk.insert_named(connection, schema.device, [dataclasses.asdict(each) for each in unknown])
        for chunk in _chunks(sorted({each.node for each in unknown})):
            query = sa.select(schema.device).where(schema.device.c.node.in_(chunk))
            for row in connection.execute(query).mappings():
                self._devices[device_of(row)] = row["id"]

    def _row(self, hold: Hold, known: Mapping[Columns, str]) -> Columns:
        member = hold.member
        party = self._parties[hold.party.uid][hold.party.queue]
        device = self._devices[hold.device]
        key = party, member.attempt, member.role, member.index, device, hold.started
        # A pod that was observed once stays recorded when it is gone.
        pod = hold.pod or known.get(key, "")
        return (*key, hold.form, hold.part, hold.milli, hold.cpu, hold.memory, pod)

    def _unwritten(self, connection: sa.Connection, uid: str, rows: list[Columns]) -> list[Columns]:
        """Without rows that are stored for another queue: a Run that moved is written again."""
        numbers = set(self._parties.get(uid, {}).values())
        if len(numbers) < 2 or not rows:
            return rows
        table = schema.interval
        columns = [table.c[name] for name in _KEY]
        query = sa.select(*columns).where(table.c.party.in_(sorted(numbers)))
        written = {tuple(row) for row in connection.execute(query)}
        return [
            row
            for row in rows
            if not any((other, *row[1 : len(_KEY)]) in written for other in numbers - {row[0]})
        ]

    def _open_rows(
        self, connection: sa.Connection, uids: Sequence[str]
    ) -> dict[str, dict[Columns, str]]:
        """By uid, the keys of the open intervals of these parties, each with its pod."""
        found: dict[str, dict[Columns, str]] = {}
        table = schema.open_interval
        columns = [table.c[name] for name in _KEY]
        owners = self._numbers(uids)
        for chunk in _chunks(list(owners)):
            query = sa.select(table.c.pod, *columns).where(table.c.party.in_(chunk))
            for pod, *key in connection.execute(query):
                found.setdefault(owners[key[0]], {})[tuple(key)] = pod
        return found

    def _replace_open(
        self, connection: sa.Connection, uids: Sequence[str], rows: Sequence[Columns]
    ) -> None:
        table = schema.open_interval
        for chunk in _chunks(list(self._numbers(uids))):
            connection.execute(table.delete().where(table.c.party.in_(chunk)))
        bulk.insert(connection, table, _HELD, rows)

    def _numbers(self, uids: Sequence[str]) -> dict[int, str]:
        """The uids of parties by id."""
        return {number: uid for uid in uids for number in self._parties.get(uid, {}).values()}

    def _unsettle(self, connection: sa.Connection, moment: int) -> None:
        """New data about this moment: days from it on are summed up again."""
        settled = _mark(connection, SETTLED)
        if settled is not None and moment < settled:
            least = _mark(connection, PRUNED) or 0
            _set_mark(connection, SETTLED, max(least, moment // DAY * DAY))


# --- rows and values ------------------------------------------------------------------------------


def select_open() -> sa.Select[Any]:
    """Open intervals with their parties and devices."""
    return (
        sa.select(schema.open_interval, schema.party, schema.device)
        .join(schema.party, schema.party.c.id == schema.open_interval.c.party)
        .join(schema.device, schema.device.c.id == schema.open_interval.c.device)
    )


def party_of(row: Row) -> Party:
    return Party(row["uid"], row["team"], row["user"], row["run"], row["queue"])


def device_of(row: Row) -> Device:
    return Device(row["node"], row["name"], row["kind"], row["model"], row["node_class"])


def hold_of(row: Row) -> Hold:
    return Hold(
        party_of(row), Member(row["attempt"], row["role"], row["member"]), device_of(row),
        row["started"], row.get("ended"), row["form"], row["part"], row["milli"], row["cpu"],
        row["memory"], row["pod"],
    )  # fmt: skip


def _pieces(row: Columns, hold: Hold, prices: Prices) -> list[Columns]:
    """An ended interval, cut where prices changed, each piece with its rate."""
    assert hold.ended is not None, "the caller checked it"  # noqa: S101
    if hold.ended <= hold.started:
        return [(*row, hold.started, 0, 0)]
    found = []
    at = len(_KEY) - 1
    for start, end in prices.cuts(hold.started, hold.ended):
        rate = prices.rate(hold.device, hold.form, start)
        owed = cost_allocation.claim(rate, hold.part)
        found.append((*row[:at], start, *row[at + 1 :], end, rate, owed))
    return found


def _version(row: Row) -> price_list.Version:
    spec = msgspec.json.decode(row["body"], type=pricelist.PriceListSpec)
    return price_list.Version(
        row["uid"], row["name"], spec.currency, row["since"], row["until"],
        tuple(price_list.entry(each) for each in spec.entries),
    )  # fmt: skip


def _price_row(each: pricelist.PriceList, now: int) -> dict[str, Any]:
    made = each.metadata.creation_timestamp
    created = int(times.parse(made).timestamp()) if made else now
    since = max(created, int(times.parse(each.spec.effective_from).timestamp()))
    return {
        "uid": each.uid,
        "name": each.name,
        "since": since,
        "until": None,
        "body": msgspec.json.encode(each.spec).decode(),
    }


def _mark(connection: sa.Connection, name: str) -> int | None:
    query = sa.select(schema.mark.c.value).where(schema.mark.c.name == name)
    found = connection.execute(query).scalar()
    return None if found is None else int(found)


def _set_mark(connection: sa.Connection, name: str, value: int) -> None:
    table = schema.mark
    changed = connection.execute(table.update().where(table.c.name == name).values(value=value))
    if not changed.rowcount:
        connection.execute(table.insert().values(name=name, value=value))


def _chunks(values: Sequence[T]) -> Iterator[Sequence[T]]:
    for start in range(0, len(values), _AT_ONCE):
        yield values[start : start + _AT_ONCE]


# --- opening --------------------------------------------------------------------------------------


def _engine(url: str) -> sa.Engine:
    parsed = sa.make_url(url)
    if parsed.drivername in ("postgres", "postgresql"):
        parsed = parsed.set(drivername="postgresql+psycopg")
    if parsed.get_backend_name() != "sqlite":
        return sa.create_engine(parsed, pool_pre_ping=True)
    engine = sa.create_engine(parsed, connect_args={"timeout": 30})

    @sa.event.listens_for(engine, "connect")
    def _prepare(connection: Any, _: Any) -> None:
        for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON",
                       "cache_size = -65536"):  # fmt: skip
            connection.execute(f"PRAGMA {pragma}")

    return engine


def _upgrade(connection: sa.Connection) -> None:
    """Runs missing migrations, all or none; Alembic is loaded only if there are any. A process that
    opens the database at the same time waits, and finds them done. An earlier SQLite ledger is
    copied before."""
    file = connection.engine.url.database
    if connection.dialect.name == "sqlite" and file and Path(file).exists():
        earlier = copies.version(Path(file))
        if earlier not in ("", schema.VERSION):
            copies.before_upgrade(Path(file), earlier)
    alone = "SELECT pg_advisory_xact_lock(7239041)"
    connection.exec_driver_sql("BEGIN IMMEDIATE" if connection.dialect.name == "sqlite" else alone)
    if sa.inspect(connection).has_table("alembic_version"):
        found = connection.execute(sa.text("SELECT version_num FROM alembic_version")).scalar()
        if found == schema.VERSION:
            return
    import alembic.command
    import alembic.config

    config = alembic.config.Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.attributes["connection"] = connection
    alembic.command.upgrade(config, "head")
    connection.commit()


def _short(problem: sa.exc.SQLAlchemyError) -> str:
    cause = getattr(problem, "orig", None) or problem
    return " ".join(str(cause).split())[:200]
