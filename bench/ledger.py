"""The ledger with a month of work in it: writing it down, and asking for the month.

    python -m bench.ledger --json [--quick]

100,000 runs with 1,000,000 intervals over a month on 500 nodes with four GPUs each. The rival is
plain SQL, written by hand, on the same database: bare INSERTs of the same rows for writing, one
GROUP BY over the intervals for the month. That query knows no shares of devices, no idle time and
no change of price within an interval, and so does less.
"""

from __future__ import annotations

import random
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench import report
from windlass.kinds import meta, pricelist, times
from windlass.ledger import accounting, reports, verifying
from windlass.ledger.book import Book
from windlass.ledger.facts import DAY, MACHINE, Device, Hold, Member, Party

START = 1_790_812_800
"""2026-10-01T00:00:00Z"""
END = START + 31 * DAY
TEAMS, USERS, GPUS = 20, 200, 4
BATCH = 500
_BY_HAND = """
SELECT party.team, device.kind, device.model,
       SUM((MIN(interval.ended, :end) - MAX(interval.started, :start)) * interval.claim),
       SUM((MIN(interval.ended, :end) - MAX(interval.started, :start)) * interval.part)
FROM interval JOIN party ON party.id = interval.party JOIN device ON device.id = interval.device
WHERE interval.ended > :start AND interval.started < :end
GROUP BY party.team, device.kind, device.model
"""


def measure(options: report.Options) -> report.Report:
    runs = 10_000 if options.quick else 100_000
    nodes = 50 if options.quick else 500
    found = report.Report()
    with tempfile.TemporaryDirectory(prefix="windlass-bench-") as folder:
        path = Path(folder) / "ledger.sqlite"
        book = Book.open(f"sqlite:///{path}")
        _prepare(book, nodes)
        batches = list(_batches(runs, nodes))
        intervals = sum(len(holds) for batch in batches for holds in batch.values())
        wrote = _timed(lambda: [book.write(batch, END) for batch in batches])
        bare = _timed(lambda: _insert_by_hand(path, Path(folder) / "bare.sqlite"))
        settled = _timed(lambda: accounting.settle(book, END + DAY, most_days=40))
        size = path.stat().st_size + _wal(path)
        month = _median(lambda: reports.usage(book, _question(("team", "device"))))
        forms = _median(lambda: reports.usage(book, _question(("device", "form", "queue"))))
        top = _median(lambda: reports.usage(book, _question(("run", "user"), top=10)))
        one = _median(lambda: reports.usage(book, _question(("device",), run="run-77")))
        hand = _median(lambda: _by_hand(path))
        verdict = verifying.verify(book, START, END)
        book.close()
    if not verdict.holds:
        found.broken.append(f"teams and idle do not add up: {verdict.difference} nano-units")
    for name, cost, count in (
        ("write", wrote, intervals), ("write, by hand", bare, intervals),
        ("add up 31 days", settled, intervals), ("month by team and device", month, 1),
        ("month by device, form, queue", forms, 1), ("ten largest runs", top, 1),
        ("one run", one, 1), ("month, by hand", hand, 1),
    ):  # fmt: skip
        wall, cpu = cost
        row: dict[str, Any] = {"what": name, "seconds": round(wall, 4), "cpu": round(cpu, 4)}
        if count > 1:
            row |= {"intervals": count, "per_second": round(count / wall)}
        found.rows.append(row)
    found.rows.append(
        {"what": "file", "bytes": size, "bytes_per_interval": round(size / intervals, 1),
         "runs": runs, "intervals": intervals}
    )  # fmt: skip
    found.ratios = {
        "month report vs SQL by hand (cpu)": round(hand[1] / month[1], 2),
        "month report vs SQL by hand (wall)": round(hand[0] / month[0], 2),
        "write vs bare INSERTs (cpu)": round(bare[1] / wrote[1], 2),
    }
    return found


def _prepare(book: Book, nodes: int) -> None:
    entries = [
        pricelist.Price(device="gpu", rented=pricelist.Rented(per_hour="2.50")),
        pricelist.Price(device="machine", rented=pricelist.Rented(per_hour="0.40")),
    ]
    at = times.seconds(times.from_unix(START - DAY))
    named = meta.ObjectMeta(name="p", uid="p", creation_timestamp=at)
    spec = pricelist.PriceListSpec(effective_from=at, entries=entries)
    book.list_prices([pricelist.PriceList(metadata=named, spec=spec)], START - DAY)
    there = [each for number in range(nodes) for each in _devices(number)]
    book.observe(there, START, {})


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


def _question(by: tuple[str, ...], **more: Any) -> reports.Question:
    everything = not more.get("run")
    return reports.Question(START, END, END + DAY, by=by, everything=everything, **more)


def _by_hand(path: Path) -> list[Any]:
    with sqlite3.connect(path) as connection:
        return connection.execute(_BY_HAND, {"start": START, "end": END}).fetchall()


def _insert_by_hand(source: Path, target: Path) -> None:
    """The same rows into the same tables with the same durability, and nothing thought about."""
    with sqlite3.connect(source) as connection:
        shape = [
            row[0] for row in connection.execute("SELECT sql FROM sqlite_master WHERE sql > ''")
        ]
        tables = {
            name: connection.execute(f"SELECT * FROM {name}").fetchall()
            for name in ("party", "device", "interval")
        }
    bare = sqlite3.connect(target)
    bare.execute("PRAGMA journal_mode = WAL")
    bare.execute("PRAGMA synchronous = FULL")
    for statement in shape:
        if "sqlite_" not in statement.split("(")[0]:
            bare.execute(statement)
    bare.commit()
    for name, rows in tables.items():
        marks = ",".join("?" * len(rows[0])) if rows else ""
        step = BATCH * 10
        for first in range(0, len(rows), step):
            bare.executemany(f"INSERT INTO {name} VALUES ({marks})", rows[first : first + step])
            bare.commit()
    bare.close()


def _wal(path: Path) -> int:
    wal = path.with_name(path.name + "-wal")
    return wal.stat().st_size if wal.exists() else 0


def _timed(work: Callable[[], Any]) -> tuple[float, float]:
    wall, cpu = time.perf_counter(), time.process_time()
    work()
    return time.perf_counter() - wall, time.process_time() - cpu


def _median(work: Callable[[], Any], times_: int = 5) -> tuple[float, float]:
    found = sorted(_timed(work) for _ in range(times_))
    return found[times_ // 2]


if __name__ == "__main__":
    report.main("ledger", __doc__ or "", measure)
