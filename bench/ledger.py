"""The ledger with a month of work in it: writing it down, and asking for the month.

    python -m bench.ledger --json [--quick]

100,000 runs with 1,000,000 intervals over a month on 500 nodes with four GPUs each, on SQLite and
on a PostgreSQL server that is started for it. The rival is plain SQL, written by hand, on the same
database: bare INSERTs of the same rows for writing, one GROUP BY over the intervals for the month.
That query knows no shares of devices, no idle time and no change of price within an interval, and
so does less. CPU seconds are of the asking process; what a server spends shows in the wall time.
"""

from __future__ import annotations

import contextlib
import random
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from bench import report
from tests.harness import postgres
from windlass.kinds.types import meta, pricelist
from windlass.kinds.values import times
from windlass.ledger.accounting import reconciliation, rollups
from windlass.ledger.db import schema
from windlass.ledger.db.repository import LedgerRepository
from windlass.ledger.model import DAY, MACHINE, Device, Hold, Member, Party
from windlass.ledger.reports import usage

START = 1_790_812_800
"""2026-10-01T00:00:00Z"""
END = START + 31 * DAY
TEAMS, USERS, GPUS = 20, 200, 4
BATCH = 500
_BY_HAND = """
SELECT party.team, device.kind, device.model,
       SUM(({least}(interval.ended, {end}) - {most}(interval.started, {start})) * interval.claim),
       SUM(({least}(interval.ended, {end}) - {most}(interval.started, {start})) * interval.part)
FROM interval JOIN party ON party.id = interval.party JOIN device ON device.id = interval.device
WHERE interval.ended > {start} AND interval.started < {end}
GROUP BY party.team, device.kind, device.model
"""
Cost = tuple[float, float]
"""Seconds of wall time and of CPU."""


def measure(options: report.Options) -> report.Report:
    found = report.Report()
    runs = 10_000 if options.quick else 100_000
    nodes = 50 if options.quick else 500
    with tempfile.TemporaryDirectory(prefix="windlass-bench-", dir="/tmp") as folder:
        path = Path(folder) / "ledger.sqlite"
        bare = f"sqlite:///{Path(folder) / 'bare.sqlite'}"
        _measured(found, "sqlite", (f"sqlite:///{path}", bare), runs, nodes)
    try:
        with _server() as server:
            urls = server.url("ledger"), server.url("bare")
            _measured(found, "postgresql", urls, runs, nodes)
    except postgres.NoPostgresError as problem:
        found.rows.append({"database": "postgresql", "what": f"not measured: {problem}"})
    return found


@contextlib.contextmanager
def _server() -> Iterator[postgres.Postgres]:
    """One that keeps what it acknowledged, as a real one does."""
    postgres.install()
    with tempfile.TemporaryDirectory(prefix="windlass-bench-", dir="/tmp") as folder:
        made = postgres.Postgres(Path(folder), durable=True)
        made.start()
        try:
            yield made
        finally:
            made.stop()


def _measured(
    found: report.Report, database: str, urls: tuple[str, str], runs: int, nodes: int
) -> None:
    repository = LedgerRepository.open(urls[0])
    _prepare(repository, nodes)
    intervals, written = _write(repository, list(_batches(runs, nodes)))
    costs = {"write": written}
    costs["write, by hand"] = _insert_by_hand(repository, LedgerRepository.open(urls[1]))
    costs["add up 31 days"] = _timed(lambda: rollups.settle(repository, END + DAY, most_days=40))
    with repository.engine.connect() as connection:
        size = _size(connection)
    hand = _BY_HAND.format(
        least="MIN" if database == "sqlite" else "LEAST",
        most="MAX" if database == "sqlite" else "GREATEST", start=START, end=END,
    )  # fmt: skip
    costs |= _asked(repository, hand)
    verdict = reconciliation.verify(repository, START, END)
    repository.close()
    if not verdict.holds:
        found.broken.append(f"{database}: off by {verdict.difference} nano-units")
    for name, (wall, cpu) in costs.items():
        row: dict[str, Any] = {"database": database, "what": name}
        row |= {"seconds": round(wall, 4), "cpu": round(cpu, 4)}
        if name.startswith(("write", "add up")):
            row |= {"intervals": intervals, "per_second": round(intervals / wall)}
        found.rows.append(row)
    found.rows.append(
        {"database": database, "what": "file", "bytes": size, "runs": runs, "intervals": intervals,
         "bytes_per_interval": round(size / intervals, 1)}
    )  # fmt: skip
    month, by_hand = costs["month by team and device"], costs["month, by hand"]
    found.ratios |= {
        f"month report vs SQL by hand, {database}": round(by_hand[0] / month[0], 2),
        f"write vs bare INSERTs, {database}": round(
            costs["write, by hand"][0] / costs["write"][0], 2
        ),
    }


def _write(repository: LedgerRepository, batches: list[dict[str, list[Hold]]]) -> tuple[int, Cost]:
    count = sum(len(holds) for batch in batches for holds in batch.values())
    return count, _timed(lambda: [repository.write(batch, END) for batch in batches])


def _asked(repository: LedgerRepository, hand: str) -> dict[str, Cost]:
    """The month, in several ways."""
    by_hand = sa.text(hand)

    def ask_by_hand() -> None:
        with repository.engine.connect() as connection:
            connection.execute(by_hand).all()

    def ask(*by: str, **more: Any) -> Cost:
        query = _usage_query(by, **more)
        return _median(lambda: usage.usage(repository, query))

    return {
        "month by team and device": ask("team", "device"),
        "month by device, form, queue": ask("device", "form", "queue"),
        "ten largest runs": ask("run", "user", top=10),
        "one run": ask("device", run="run-77"),
        "month, by hand": _median(ask_by_hand),
    }


def _prepare(repository: LedgerRepository, nodes: int) -> None:
    entries = [
        pricelist.Price(device="gpu", rented=pricelist.Rented(per_hour="2.50")),
        pricelist.Price(device="machine", rented=pricelist.Rented(per_hour="0.40")),
    ]
    at = times.seconds(times.from_unix(START - DAY))
    named = meta.ObjectMeta(name="p", uid="p", creation_timestamp=at)
    spec = pricelist.PriceListSpec(effective_from=at, entries=entries)
    repository.list_prices([pricelist.PriceList(metadata=named, spec=spec)], START - DAY)
    there = [each for number in range(nodes) for each in _devices(number)]
    repository.observe(there, START, {})


def _devices(node: int) -> list[Device]:
    name = f"node-{node:04}"
    model = "h100" if node % 4 == 0 else "a100"
    gpus = [Device(name, f"gpu/{i}", "gpu", model, "big") for i in range(GPUS)]
    return [Device(name, MACHINE, MACHINE, "", "big"), *gpus]


def _batches(runs: int, nodes: int) -> Iterator[dict[str, list[Hold]]]:
    """Ten intervals a run: two attempts of one member with its machine and four GPUs."""
    rng = random.Random(7)
    owned = [_devices(number) for number in range(nodes)]
    batch: dict[str, list[Hold]] = {}
    for number in range(runs):
        person = rng.randrange(USERS)
        team, user = f"team-{person % TEAMS:02}", f"user-{person:03}"
        party = Party(f"uid-{number:08}", team, user, f"run-{number}", team)
        started = START + rng.randrange(30 * DAY)
        holds = []
        for attempt in range(2):
            ended = started + rng.randrange(60, 6 * 3600)
            machine, *gpus = owned[rng.randrange(nodes)]
            member = Member(attempt, "worker", 0)
            holds.append(
                Hold(party, member, machine, started, ended, "share", 125_000, 125, 8000, 32 << 30)
            )
            holds += [Hold(party, member, gpu, started, ended) for gpu in gpus]
            started = ended + 30
        batch[party.uid] = holds
        if len(batch) == BATCH:
            yield batch
            batch = {}
    if batch:
        yield batch


def _usage_query(by: tuple[str, ...], **more: Any) -> usage.UsageQuery:
    everything = not more.get("run")
    return usage.UsageQuery(START, END, END + DAY, by=by, everything=everything, **more)


def _insert_by_hand(source: LedgerRepository, target: LedgerRepository) -> Cost:
    """The same rows into the same tables with the same durability, and nothing thought about."""
    wall = cpu = 0.0
    for table in (schema.party, schema.device, schema.interval):
        with source.engine.connect() as connection:
            rows = [tuple(row) for row in connection.execute(sa.select(table))]
        sqlite = target.engine.dialect.name == "sqlite"
        marks = ", ".join(["?" if sqlite else "%s"] * len(table.c))
        statement = f"INSERT INTO {table.name} VALUES ({marks})"
        bare = target.engine.raw_connection()

        def insert(rows: list[Any] = rows, statement: str = statement, to: Any = bare) -> None:
            at_once = to.cursor()
            for first in range(0, len(rows), BATCH * 10):
                at_once.executemany(statement, rows[first : first + BATCH * 10])
                to.commit()

        cost = _timed(insert)
        bare.close()
        wall, cpu = wall + cost[0], cpu + cost[1]
    target.close()
    return wall, cpu


def _size(connection: sa.Connection) -> int:
    if connection.dialect.name != "sqlite":
        return int(
            connection.exec_driver_sql("SELECT pg_database_size(current_database())").scalar_one()
        )
    connection.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)")
    pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


def _timed(work: Callable[[], Any]) -> Cost:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _median(work: Callable[[], Any], times_: int = 5) -> Cost:
    found = sorted(_timed(work) for _ in range(times_))
    return found[times_ // 2]


if __name__ == "__main__":
    report.main("ledger", __doc__ or "", measure)
