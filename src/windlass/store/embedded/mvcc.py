"""The MVCC store: revisions in SQLite with one writer, group commit, and readers that see only
durable state.

Called by `api` alone. It stores keys and bytes and does not interpret objects. All methods run on
the event loop's thread, except the commit (a thread of its own does the fsync while the event loop
collects the next batch) and long reads (lists and history).
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import logging
import sqlite3
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from windlass.store import errors
from windlass.store.embedded import disk_reserve, migrations

_log = logging.getLogger(__name__)

R = TypeVar("R")

ADDED, MODIFIED, DELETED = 1, 2, 3
BATCH = 256
"""Requests that share one fsync at most."""
BATCH_SECONDS = 0.003
"""A batch takes no further request after this time: it blocks the event loop."""


@dataclasses.dataclass(frozen=True, slots=True)
class Key:
    """The key of an object; `resource` is `Resource.key`."""

    resource: str
    namespace: str
    name: str


@dataclasses.dataclass(frozen=True, slots=True)
class Revision:
    """One revision: a change of one object."""

    rv: int
    key: Key
    event: int
    data: bytes
    """The object; for DELETED its last state."""
    previous: bytes | None
    """The object before the change; selectors need both."""


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectPage:
    """Objects of one resource in key order, joined by commas, all as of one revision."""

    body: bytes
    count: int
    rv: int
    last: tuple[str, str] | None
    """Namespace and name of the last object if more objects follow it."""
    remaining: int


class Transaction:
    """Reads and writes the state inside of the current batch."""

    def __init__(self, connection: sqlite3.Connection, last_rv: int) -> None:
        self._execute = connection.execute
        self.last_rv = last_rv
        self.changes: list[Revision] = []
        self.dirty = False
        self._savepoint = False

    def get(self, key: Key) -> bytes | None:
        found = self._execute(_GET, (key.resource, key.namespace, key.name)).fetchone()
        return found[0] if found else None

    def exists(self, key: Key) -> bool:
        return bool(self._execute(_EXISTS, (key.resource, key.namespace, key.name)).fetchone())

    def uid_exists(self, uid: str) -> bool:
        return bool(self._execute("SELECT 1 FROM current WHERE uid = ?", (uid,)).fetchone())

    def keys_in_namespace(self, namespace: str, limit: int) -> list[Key]:
        rows = self._execute(
            "SELECT resource, namespace, name FROM current WHERE namespace = ? LIMIT ?",
            (namespace, limit),
        )
        return [Key(*row) for row in rows]

    def next_rv(self) -> int:
        """The revision of the next `put` or `remove`, which is part of the object."""
        return self.last_rv + 1

    def put(self, key: Key, uid: str, data: bytes, previous: bytes | None) -> int:
        """Adds (`previous` None) or changes an object."""
        prev_rv = self._current_rv(key) if previous is not None else None
        self._append(key, ADDED if previous is None else MODIFIED, data, previous, prev_rv)
        where = (key.resource, key.namespace, key.name)
        if previous is None:
            self._execute("INSERT INTO current VALUES (?, ?, ?, ?, ?)", (*where, uid, self.last_rv))
        else:
            self._execute(_MOVE, (self.last_rv, *where))
        return self.last_rv

    def remove(self, key: Key, data: bytes, previous: bytes) -> int:
        """Deletes an object; `data` is its last state with the revision of the deletion."""
        prev_rv = self._current_rv(key)
        self._append(key, DELETED, data, previous, prev_rv)
        self._execute(_DROP, (key.resource, key.namespace, key.name))
        return self.last_rv

    def execute(self, sql: str, parameters: tuple[Any, ...] = ()) -> sqlite3.Cursor:
        """For compaction only; objects change through `put` and `remove`."""
        self._begin_write()
        return self._execute(sql, parameters)

    def _current_rv(self, key: Key) -> int:
        found = self._execute(_CURRENT_RV, (key.resource, key.namespace, key.name)).fetchone()
        return int(found[0])

    def _append(
        self, key: Key, event: int, data: bytes, previous: bytes | None, prev_rv: int | None
    ) -> None:
        self._begin_write()
        self.last_rv += 1
        row = (self.last_rv, key.resource, key.namespace, key.name, event, prev_rv, data)
        self._execute("INSERT INTO revision VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        self.changes.append(Revision(self.last_rv, key, event, data, previous))

    def _begin_write(self) -> None:
        self.dirty = True
        if not self._savepoint:
            self._execute("SAVEPOINT request")
            self._savepoint = True

    def run(self, request: Callable[[Transaction], R]) -> R:
        """Runs one request of the batch atomically."""
        rv, count = self.last_rv, len(self.changes)
        self._savepoint = False
        try:
            result = request(self)
        except sqlite3.Error:
            raise  # SQLite may have rolled back the whole transaction: the batch fails
        except BaseException:
            if self._savepoint:
                self._execute("ROLLBACK TO request")
                self._execute("RELEASE request")
            self.last_rv = rv
            del self.changes[count:]
            raise
        if self._savepoint:
            self._execute("RELEASE request")
        return result


class SnapshotReader:
    """Reads lists and history on a connection of its own, with one SQLite call each."""

    def __init__(self, path: Path) -> None:
        self._connection = migrations.connect(path, read_only=True)

    def _stored(self, sql: str) -> int:
        return int(self._connection.execute(sql).fetchone()[0])

    def page(
        self,
        resource: str,
        namespace: str,
        after: tuple[str, str],
        limit: int,
        at: int,
        mark: bytes = b"",
    ) -> ObjectPage:
        """Objects after the key `after` as of revision `at` (0: now); `limit` 0 means all. Objects
        without the bytes `mark` may be left out of the body; they still count."""
        self._connection.execute("BEGIN")
        try:
            latest = self._stored(
                "SELECT max(rv) FROM (SELECT max(rv) AS rv FROM revision "
                "UNION SELECT value FROM meta WHERE key = 'last_rv')"
            )
            if at and at < self._stored("SELECT value FROM meta WHERE key = 'compacted'"):
                raise errors.Gone(TOO_OLD.format(at))
            if not at or at >= latest or not self._changed_since(resource, at):
                return self._page_now(resource, namespace, after, limit, at or latest, mark)
            return self._page_then(resource, namespace, after, limit, at)
        finally:
            self._connection.execute("COMMIT")

    def _changed_since(self, resource: str, at: int) -> bool:
        sql = "SELECT 1 FROM revision WHERE rv > ? AND resource = ? LIMIT 1"
        return self._connection.execute(sql, (at, resource)).fetchone() is not None

    def _page_now(
        self,
        resource: str,
        namespace: str,
        after: tuple[str, str],
        limit: int,
        rv: int,
        mark: bytes,
    ) -> ObjectPage:
        where, values = _range(resource, namespace, after)
        keys = f"SELECT namespace, name, rv FROM current {where} ORDER BY namespace, name"
        bounded = f"{keys} LIMIT {limit}" if limit else keys
        data = "CASE WHEN instr(r.data, ?) THEN r.data END" if mark else "r.data"
        # SQLite filters and joins: one call, and no Python object per row.
        body, count = self._connection.execute(
            f"SELECT CAST(group_concat({data}, ',') AS BLOB), count(*) FROM ({bounded}) k "
            "CROSS JOIN revision r ON r.rv = k.rv",
            (mark, *values) if mark else values,
        ).fetchone()
        last, remaining = None, 0
        if limit and count == limit:
            total = self._connection.execute(f"SELECT count(*) FROM current {where}", values)
            remaining = int(total.fetchone()[0]) - count
        if remaining > 0:
            row = self._connection.execute(f"{keys} LIMIT 1 OFFSET {limit - 1}", values).fetchone()
            last = (row[0], row[1])
        return ObjectPage(body or b"", count, rv, last, remaining)

    def _page_then(
        self, resource: str, namespace: str, after: tuple[str, str], limit: int, at: int
    ) -> ObjectPage:
        """As `_page_now` at an older revision: later changes are replaced by the state before."""
        before: dict[tuple[str, str], int | None] = {}
        changed = "SELECT namespace, name, prev_rv FROM revision WHERE rv > ? AND resource = ? "
        for ns, name, prev_rv in self._connection.execute(changed + "ORDER BY rv", (at, resource)):
            before.setdefault((ns, name), prev_rv)
        where, values = _range(resource, namespace, after)
        rows = self._connection.execute(f"SELECT namespace, name, rv FROM current {where}", values)
        states = {(ns, name): rv for ns, name, rv in rows if rv <= at}
        states |= {
            key: prev_rv
            for key, prev_rv in before.items()
            if prev_rv is not None and key > after and namespace in ("", key[0])
        }
        keys = sorted(states)
        shown = keys[:limit] if limit else keys
        parts = [self._data(states[key]) for key in shown]
        remaining = len(keys) - len(shown)
        return ObjectPage(
            b",".join(parts), len(parts), at, shown[-1] if remaining else None, remaining
        )

    def _data(self, rv: int) -> bytes:
        row = self._connection.execute("SELECT data FROM revision WHERE rv = ?", (rv,)).fetchone()
        return bytes(row[0])

    def close(self) -> None:
        self._connection.close()

    def history(self, resource: str, after: int, limit: int) -> list[Revision]:
        """Changes of a resource after a revision, oldest first. Raises Gone when some of them are
        compacted."""
        rows = self._connection.execute(_HISTORY, (after, resource, limit)).fetchall()
        compacted = self._stored("SELECT value FROM meta WHERE key = 'compacted'")
        if after < compacted:
            raise errors.Gone(TOO_OLD.format(after))
        return [
            Revision(rv, Key(resource, namespace, name), event, data, previous)
            for rv, namespace, name, event, data, previous in rows
        ]


class MvccStore:
    """The store file. Open one per process; a lock of `server` ensures that there is one writer."""

    def __init__(self, path: Path, on_commit: Callable[[list[Revision]], None]) -> None:
        self.path = path
        self._on_commit = on_commit
        self._writer = migrations.connect(path)
        migrations.upgrade(self._writer, path)
        self._reader = migrations.connect(path, read_only=True)
        self.last_rv = self.durable_rv()
        self.compacted = self._stored("SELECT value FROM meta WHERE key = 'compacted'")
        self._pending: deque[_Request] = deque()
        self._committing = False
        self._scheduled = False
        self._broken: str | None = None
        self.disk_reserve = disk_reserve.DiskReserve(path)
        self._idle = asyncio.Event()
        self._idle.set()
        self._commit_thread = concurrent.futures.ThreadPoolExecutor(1, "store-commit")
        self._read_threads = concurrent.futures.ThreadPoolExecutor(2, "store-read")
        self._local = threading.local()
        self._readers: list[SnapshotReader] = []

    def _stored(self, sql: str) -> int:
        return int(self._reader.execute(sql).fetchone()[0])

    def usage(self) -> list[tuple[str, str, int, int]]:
        """Resource, namespace, number of objects and their bytes."""
        rows = self._reader.execute(
            "SELECT c.resource, c.namespace, count(*), sum(length(r.data)) FROM current c "
            "CROSS JOIN revision r ON r.rv = c.rv GROUP BY c.resource, c.namespace"
        )
        return [(row[0], row[1], int(row[2]), int(row[3])) for row in rows]

    # --- writing

    async def write(self, request: Callable[[Transaction], R]) -> R:
        """Runs `request` in the next batch; returns when its changes are on disk."""
        if self._broken:
            raise errors.Unavailable(self._broken)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[R] = loop.create_future()
        self._pending.append((request, future))
        self._idle.clear()
        if not self._committing and not self._scheduled:
            # In the next iteration of the event loop: requests that arrive until then share the
            # fsync.
            self._scheduled = True
            loop.call_soon(self._run_batch)
        return await future

    def _run_batch(self) -> None:
        self._scheduled = False
        batch: list[_Request] = []
        outcomes: list[_Outcome] = []
        transaction = Transaction(self._writer, self.last_rv)
        until = time.perf_counter() + BATCH_SECONDS
        try:
            self._writer.execute("BEGIN IMMEDIATE")
            while self._pending and len(batch) < BATCH:
                request, future = self._pending.popleft()
                batch.append((request, future))
                outcomes.append((future, *_outcome(transaction, request)))
                if time.perf_counter() >= until:
                    break
        except sqlite3.Error as problem:
            if not batch:  # the transaction did not begin: those that wait for it have no other
                batch = [self._pending.popleft() for _ in range(min(BATCH, len(self._pending)))]
            self._fail(batch, problem)
            return
        if not transaction.dirty:
            self._writer.execute("ROLLBACK")
            self._settle(outcomes)
            return
        self._committing = True
        loop = asyncio.get_running_loop()
        commit = loop.run_in_executor(self._commit_thread, self._writer.execute, "COMMIT")
        commit.add_done_callback(lambda done: self._committed(done, batch, outcomes, transaction))

    def _committed(
        self,
        done: asyncio.Future[Any],
        batch: list[_Request],
        outcomes: list[_Outcome],
        transaction: Transaction,
    ) -> None:
        self._committing = False
        problem = done.exception()
        if problem is not None:
            self._fail(batch, problem)
            return
        self.last_rv = transaction.last_rv
        try:
            if transaction.changes:
                self._on_commit(transaction.changes)
        finally:  # an error in an observer does not change the outcome of the writes
            self._settle(outcomes)

    def _settle(self, outcomes: list[_Outcome]) -> None:
        for future, result, problem in outcomes:
            if future.done():  # the caller was cancelled; its write remains
                continue
            if problem is not None:
                future.set_exception(problem)
            else:
                future.set_result(result)
        self._continue()

    def _continue(self) -> None:
        if self._pending:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._run_batch)
        else:
            self._idle.set()

    def _fail(self, batch: list[_Request], problem: BaseException) -> None:
        """Called when nothing of the batch was written. A full disk may be temporary; after any
        other I/O error the state of the file is unknown, so writes fail until a restart."""
        with contextlib.suppress(sqlite3.Error):  # SQLite may have rolled back by itself
            if self._writer.in_transaction:
                self._writer.execute("ROLLBACK")
        name = getattr(problem, "sqlite_errorname", "")
        if name == "SQLITE_FULL" and self.disk_reserve.release():
            _log.warning("the disk of %s is full; the store uses its reserve; free disk space",
                         self.path)  # fmt: skip
            self._pending.extendleft(reversed(batch))
            self._continue()
            return
        full = name in ("SQLITE_FULL", "SQLITE_BUSY")
        sentence = f"the store {self.path} could not be written: {problem}; "
        sentence += "free some disk space and try again" if full else "restart Windlass"
        if not full:
            self._broken = sentence
        for _, future in batch:
            if not future.done():
                future.set_exception(errors.Unavailable(sentence, retry_after=5))
        self._continue()

    # --- reading committed state

    def durable_rv(self) -> int:
        """The last revision on disk: briefly greater than `last_rv` after a commit, because readers
        see a commit before the event loop's thread is notified."""
        return self._stored(
            "SELECT max((SELECT ifnull(max(rv), 0) FROM revision), "
            "(SELECT value FROM meta WHERE key = 'last_rv'))"
        )

    def get(self, key: Key) -> bytes | None:
        found = self._reader.execute(_GET, (key.resource, key.namespace, key.name)).fetchone()
        return found[0] if found else None

    async def page(
        self,
        resource: str,
        namespace: str,
        after: tuple[str, str],
        limit: int,
        at: int,
        mark: bytes = b"",
    ) -> ObjectPage:
        """See `SnapshotReader.page`."""
        return await self._read(lambda r: r.page(resource, namespace, after, limit, at, mark))

    async def history(self, resource: str, after: int, limit: int) -> list[Revision]:
        """See `SnapshotReader.history`."""
        return await self._read(lambda r: r.history(resource, after, limit))

    async def _read(self, work: Callable[[SnapshotReader], R]) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._read_threads, lambda: work(self._thread_reader()))

    def _thread_reader(self) -> SnapshotReader:
        if not hasattr(self._local, "reader"):
            self._local.reader = SnapshotReader(self.path)
            self._readers.append(self._local.reader)
        reader: SnapshotReader = self._local.reader
        return reader

    def mentioning(self, field: str) -> Iterator[tuple[Key, bytes]]:
        """All existing objects whose JSON has a field of this name at any depth."""
        sql = (
            "SELECT c.resource, c.namespace, c.name, r.data FROM current c "
            "JOIN revision r ON r.rv = c.rv WHERE instr(r.data, ?)"
        )
        for resource, namespace, name, data in self._reader.execute(sql, (f'"{field}"'.encode(),)):
            yield Key(resource, namespace, name), data

    def counts(self) -> dict[str, int]:
        """Objects by resource."""
        rows = self._reader.execute("SELECT resource, count(*) FROM current GROUP BY resource")
        return dict(rows.fetchall())

    # --- compaction

    async def compact(self, upto: int, slice_size: int = 2000) -> None:
        """Removes revisions that were superseded up to `upto`, in slices, so that writes are not
        delayed."""
        upto = min(upto, self.last_rv)
        while self.compacted < upto:
            target = min(upto, self.compacted + slice_size)
            await self.write(_compaction(self.compacted, target))
            self.compacted = target

    async def close(self) -> None:
        """Waits for accepted writes, then closes the file."""
        await self._idle.wait()
        self._commit_thread.shutdown()
        self._read_threads.shutdown()
        for reader in self._readers:
            reader.close()
        self._reader.close()
        self._writer.close()  # the last connection: SQLite merges the WAL into the file


TOO_OLD = "the resourceVersion {} is too old: its history is compacted; list again"

_Request = tuple["Callable[[Transaction], Any]", "asyncio.Future[Any]"]
_Outcome = tuple["asyncio.Future[Any]", Any, "BaseException | None"]

_GET = (
    "SELECT r.data FROM current c JOIN revision r ON r.rv = c.rv "
    "WHERE c.resource = ? AND c.namespace = ? AND c.name = ?"
)
_EXISTS = "SELECT 1 FROM current WHERE resource = ? AND namespace = ? AND name = ?"
_CURRENT_RV = "SELECT rv FROM current WHERE resource = ? AND namespace = ? AND name = ?"
_MOVE = "UPDATE current SET rv = ? WHERE resource = ? AND namespace = ? AND name = ?"
_DROP = "DELETE FROM current WHERE resource = ? AND namespace = ? AND name = ?"
_HISTORY = (
    "SELECT r.rv, r.namespace, r.name, r.event, r.data, p.data FROM revision r "
    "LEFT JOIN revision p ON p.rv = r.prev_rv WHERE r.rv > ? AND r.resource = ? "
    "ORDER BY r.rv LIMIT ?"
)


def _outcome(
    transaction: Transaction, request: Callable[[Transaction], Any]
) -> tuple[Any, BaseException | None]:
    try:
        return transaction.run(request), None
    except sqlite3.Error:
        raise
    except Exception as problem:  # raised by the await of the request
        return None, problem


def _range(resource: str, namespace: str, after: tuple[str, str]) -> tuple[str, tuple[str, ...]]:
    where, values = "WHERE resource = ?", [resource]
    if namespace:
        where += " AND namespace = ?"
        values.append(namespace)
    if after != ("", ""):
        where += " AND (namespace, name) > (?, ?)"
        values += after
    return where, tuple(values)


def _compaction(after: int, upto: int) -> Callable[[Transaction], None]:
    def request(transaction: Transaction) -> None:
        span = (after, upto)
        transaction.execute(
            "DELETE FROM revision WHERE rv IN "
            "(SELECT prev_rv FROM revision WHERE rv > ? AND rv <= ? AND prev_rv IS NOT NULL)",
            span,
        )
        transaction.execute(
            f"DELETE FROM revision WHERE rv > ? AND rv <= ? AND event = {DELETED}", span
        )
        transaction.execute("UPDATE meta SET value = max(value, ?) WHERE key = 'last_rv'", (upto,))
        transaction.execute("UPDATE meta SET value = ? WHERE key = 'compacted'", (upto,))
        transaction.execute("PRAGMA incremental_vacuum(200)")

    return request
