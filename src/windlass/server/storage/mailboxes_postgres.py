"""Mailboxes in PostgreSQL and S3-compatible storage, which all servers share, for `interfaces`.

Tables have the worker of each call, and the events. Each step is one transaction, so a server that
dies leaves a step done or not done, and two servers never give one call to two workers. Small calls
and results are in their row, others in object storage, written before the row that names them:

    mail/<box>/<key>.<kind>.<random>/<number>      a piece; the row has the valid ones

Servers notify each other by NOTIFY; a waiting request then queries the tables. Mailboxes live as
long as the program that created them: a later schema gets new table names.
"""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import psycopg

from windlass.server.storage import interfaces
from windlass.server.storage.bucket import blobs_bucket
from windlass.server.storage.bucket.bucket import Bucket
from windlass.server.storage.interfaces import MailboxClosed, MailboxEvents, MailboxRecord, Notifier
from windlass.server.storage.postgres import Connection, Database

_CHANNEL = "windlass_mail"
_LOCK = 7239042
_MOST_MET = 10_000
_TABLES = """
CREATE TABLE IF NOT EXISTS windlass_mailbox (
    name text PRIMARY KEY, namespace text NOT NULL, owner text NOT NULL, hash text NOT NULL,
    told bigint NOT NULL DEFAULT 0, used timestamptz NOT NULL DEFAULT now());
CREATE TABLE IF NOT EXISTS windlass_mail (
    box text NOT NULL REFERENCES windlass_mailbox ON DELETE CASCADE, key text NOT NULL,
    place bigserial, worker text,
    call bytea, call_at text, call_size bigint, result bytea, result_at text, result_size bigint,
    PRIMARY KEY (box, key));
CREATE TABLE IF NOT EXISTS windlass_mailnews (
    box text NOT NULL REFERENCES windlass_mailbox ON DELETE CASCADE, number bigint NOT NULL,
    item text NOT NULL, PRIMARY KEY (box, number));
CREATE TABLE IF NOT EXISTS windlass_mailworker (
    box text NOT NULL REFERENCES windlass_mailbox ON DELETE CASCADE, worker text NOT NULL,
    python text NOT NULL, PRIMARY KEY (box, worker));
"""
_CURRENT = """
SELECT key FROM windlass_mail WHERE box = %s AND worker = %s AND call_size IS NOT NULL
    AND result_size IS NULL ORDER BY place LIMIT 1"""
_NEXT = """
SELECT key FROM windlass_mail WHERE box = %s AND worker IS NULL AND call_size IS NOT NULL
    AND result_size IS NULL AND key ~ '^[0-9]+$' ORDER BY place LIMIT 1 FOR UPDATE SKIP LOCKED"""
_PUT = {
    kind: f"""
INSERT INTO windlass_mail (box, key, {kind}, {kind}_at, {kind}_size) VALUES (%s, %s, %s, %s, %s)
    ON CONFLICT (box, key) DO UPDATE SET {kind} = excluded.{kind}, {kind}_at = excluded.{kind}_at,
    {kind}_size = excluded.{kind}_size"""
    for kind in ("call", "result")
}
"""Written out for the two kinds; no value is joined into them."""
_READ = {
    kind: f"SELECT {kind}, {kind}_at, {kind}_size FROM windlass_mail WHERE box = %s AND key = %s"
    for kind in _PUT
}
_NEWS = """
SELECT news.number, news.item, mail.result FROM windlass_mailnews news
    LEFT JOIN windlass_mail mail ON mail.box = news.box AND mail.key = news.item::json->>'call'
        AND news.item::json->>'type' = 'done'
    WHERE news.box = %s AND news.number > %s ORDER BY news.number"""
_MET = """
INSERT INTO windlass_mailworker (box, worker, python) VALUES (%s, %s, %s)
    ON CONFLICT (box, worker) DO UPDATE SET python = excluded.python
    WHERE windlass_mailworker.python <> excluded.python"""
_UNUSED = """
DELETE FROM windlass_mailbox WHERE used < to_timestamp(%s) RETURNING name"""


class PostgresMailboxStore:
    def __init__(self, url: str, bucket: Bucket) -> None:
        self.notifier = Notifier()
        self._database = Database(url, "mailboxes", _TABLES, _LOCK)
        self._bucket = bucket
        self._met: set[tuple[str, str, str]] = set()
        """Workers with a row: they poll often, and never change."""
        self._listening = asyncio.create_task(
            self._database.listen(_CHANNEL, self.notifier.notify, self.notifier.notify_all)
        )

    async def create(self, name: str, record: MailboxRecord) -> None:
        statement = """INSERT INTO windlass_mailbox (name, namespace, owner, hash)
            VALUES (%s, %s, %s, %s) ON CONFLICT DO NOTHING"""
        values = (name, record.namespace, record.user, record.hash)
        await self._database.do(lambda connection: connection.execute(statement, values))

    async def record(self, name: str) -> MailboxRecord | None:
        async def work(connection: Connection) -> MailboxRecord | None:
            query = "SELECT namespace, owner, hash FROM windlass_mailbox WHERE name = %s"
            row = await _row(connection, query, name)
            return None if row is None else MailboxRecord(*row)

        return await self._database.do(work)

    async def delete(self, name: str) -> None:
        async def work(connection: Connection) -> None:
            await connection.execute("DELETE FROM windlass_mailbox WHERE name = %s", (name,))
            await _notify(connection, name)

        await self._database.do(work)
        await self._bucket.delete_under(f"mail/{name}/")

    async def put(self, name: str, key: str, kind: str, data: AsyncIterator[bytes]) -> None:
        content, at, size = await self._store(name, key, kind, data)

        async def work(connection: Connection) -> None:
            await connection.execute(_PUT[kind], (name, key, content, at, size))
            if kind == "result":
                await _add_event(connection, name, {"type": "done", "call": key})
            else:
                used = "UPDATE windlass_mailbox SET used = now() WHERE name = %s"
                await connection.execute(used, (name,))
                await _notify(connection, name)

        try:
            await self._database.do(work)
        except psycopg.errors.ForeignKeyViolation:
            await self._bucket.delete_under(f"mail/{name}/")
            raise MailboxClosed from None

    async def read(self, name: str, key: str, kind: str) -> bytes | None:
        row = await self._database.do(lambda connection: _row(connection, _READ[kind], name, key))
        if row is None or row[2] is None:
            return None
        content, at, size = row
        if at is None:
            return bytes(content)
        found = bytearray()
        while len(found) < size:
            stored = await self._bucket.get(f"{at}/{len(found) // blobs_bucket.PIECE_BYTES}")
            if stored is None:
                return None  # deleted while it was read
            found += stored.data
        return bytes(found)

    async def discard(self, name: str, key: str) -> None:
        statement = """DELETE FROM windlass_mail WHERE box = %s AND key = %s
            RETURNING call_at, result_at"""
        row = await self._database.do(lambda connection: _row(connection, statement, name, key))
        for at in row or ():
            if at is not None:
                await self._bucket.delete_under(f"{at}/")

    async def take(self, name: str, worker: str) -> str | None:
        async def work(connection: Connection) -> str | None:
            current = await _row(connection, _CURRENT, name, worker)
            if current is not None:
                return str(current[0])
            found = await _row(connection, _NEXT, name)
            if found is None:
                there = "SELECT 1 FROM windlass_mailbox WHERE name = %s"
                if await _row(connection, there, name) is None:
                    raise MailboxClosed
                return None
            key = str(found[0])
            await connection.execute(
                "UPDATE windlass_mail SET worker = %s WHERE box = %s AND key = %s",
                (worker, name, key),
            )
            await _add_event(connection, name, {"type": "taken", "call": key, "worker": worker})
            return key

        return await self._database.do(work)

    async def register_worker(self, name: str, worker: str, python: str) -> None:
        if (name, worker, python) in self._met:
            return

        async def work(connection: Connection) -> None:
            if (await connection.execute(_MET, (name, worker, python))).rowcount:
                await _add_event(
                    connection, name, {"type": "worker", "worker": worker, "python": python}
                )

        try:
            await self._database.do(work)
        except psycopg.errors.ForeignKeyViolation:
            raise MailboxClosed from None
        if len(self._met) >= _MOST_MET:
            self._met.clear()
        self._met.add((name, worker, python))

    async def events(self, name: str, epoch: str, after: int) -> MailboxEvents:
        mine = name[:8]
        heard = after if epoch == mine else 0

        async def work(connection: Connection) -> list[Any]:
            if heard:
                past = "DELETE FROM windlass_mailnews WHERE box = %s AND number <= %s"
                await connection.execute(past, (name, heard))
            return await (await connection.execute(_NEWS, (name, heard))).fetchall()

        events: list[dict[str, Any]] = []
        for number, item, result in await self._database.do(work):
            event = msgspec.json.decode(item)
            if result is not None:
                event["result"] = base64.b64encode(result).decode()
            events.append(event)
            heard = number
        return MailboxEvents(mine, heard, events)

    async def sweep(self, now: float) -> list[str]:
        """Deletes boxes that are unused for long, and mail of deleted boxes."""
        limit = now - interfaces.UNUSED_MAILBOX_SECONDS

        async def work(connection: Connection) -> tuple[list[str], set[str]]:
            gone = await (await connection.execute(_UNUSED, (limit,))).fetchall()
            left = await (await connection.execute("SELECT name FROM windlass_mailbox")).fetchall()
            return [row[0] for row in gone], {row[0] for row in left}

        # Listed first: a box exists before its mail does.
        mail = [entry async for entry in self._bucket.list("mail/")]
        gone, left = await self._database.do(work)
        await self._bucket.delete(
            *(entry.key for entry in mail if entry.key.split("/")[1] not in left)
        )
        return gone

    async def stop(self) -> None:
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._database.close()

    async def _store(
        self, name: str, key: str, kind: str, data: AsyncIterator[bytes]
    ) -> tuple[bytes | None, str | None, int]:
        """The place of the data: in the row, or in object storage; and its size."""
        at = f"mail/{name}/{key}.{kind}.{secrets.token_hex(8)}"
        size = count = 0
        first = b""
        async for piece in blobs_bucket.gathered(data):
            if not count and len(piece) <= interfaces.INLINE_BYTES:
                first = piece  # the first rest is all of it
            else:
                await self._bucket.put(f"{at}/{count}", piece)
            size, count = size + len(piece), count + 1
        return (first, None, size) if size <= interfaces.INLINE_BYTES else (None, at, size)


async def _row(connection: Connection, query: str, *values: Any) -> Any:
    return await (await connection.execute(query.encode(), values)).fetchone()


async def _add_event(connection: Connection, name: str, item: dict[str, Any]) -> None:
    """Numbered under the lock of the box's row: a higher number is later."""
    statement = """UPDATE windlass_mailbox SET told = told + 1, used = now() WHERE name = %s
        RETURNING told"""
    row = await _row(connection, statement, name)
    if row is None:
        raise MailboxClosed
    await connection.execute(
        "INSERT INTO windlass_mailnews (box, number, item) VALUES (%s, %s, %s)",
        (name, row[0], msgspec.json.encode(item).decode()),
    )
    await _notify(connection, name)


async def _notify(connection: Connection, name: str) -> None:
    await connection.execute("SELECT pg_notify(%s, %s)", (_CHANNEL, name))
