"""A few connections to PostgreSQL for what servers must agree on, and news between them.

Each piece of work is one transaction, and is done again when the connection breaks or two collide:
so it must be such that doing it twice is doing it once. psycopg is loaded with this module, which
is loaded only where there is a database to speak to.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg

from windlass.server import patience
from windlass.store import errors

_log = logging.getLogger(__name__)

_CONNECTIONS = 8
_CONNECT_SECONDS = 5
Connection = psycopg.AsyncConnection[Any]
T = TypeVar("T")


class Database:
    def __init__(self, url: str, tables: str, lock: int) -> None:
        """`tables`: statements that make what is missing; `lock`: who makes it is alone."""
        self._url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._tables = tables
        self._lock = lock
        self._idle: list[Connection] = []
        self._room = asyncio.Semaphore(_CONNECTIONS)
        self._made = False

    async def do(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """In one transaction. Unavailable if the database stays away."""
        failed = ""
        async for _ in patience.tries():
            try:
                async with self._room:
                    return await self._once(work)
            except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
                failed = " ".join(str(problem).split())[:200]
        raise errors.Unavailable(
            f"the database of mailboxes does not answer: {failed}; try again when it does",
            retry_after=1.0,
        )

    async def listen(
        self, channel: str, hear: Callable[[str], None], again: Callable[[], None]
    ) -> None:
        """Hears what is told on a channel until cancelled; `again` after every gap, in which
        something may have been missed."""
        while True:
            try:
                async with await self._connect() as connection:
                    await connection.set_autocommit(True)
                    await connection.execute(f'LISTEN "{channel}"')
                    again()
                    async for told in connection.notifies():
                        hear(told.payload)
            except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
                _log.warning("news of mailboxes is late: %s", " ".join(str(problem).split())[:200])
            await asyncio.sleep(patience.FIRST_PAUSE)

    async def close(self) -> None:
        idle, self._idle = self._idle, []
        for connection in idle:
            await connection.close()

    async def _once(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        connection = self._idle.pop() if self._idle else await self._connect()
        try:
            if not self._made:
                async with connection.transaction():
                    await connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
                    await connection.execute(self._tables.encode())
                self._made = True
            async with connection.transaction():
                result = await work(connection)
        except BaseException:
            with contextlib.suppress(psycopg.Error):
                await connection.close()
            raise
        self._idle.append(connection)
        return result

    async def _connect(self) -> Connection:
        return await psycopg.AsyncConnection.connect(
            self._url, connect_timeout=_CONNECT_SECONDS, autocommit=True,
            keepalives_idle=10, keepalives_interval=5, keepalives_count=3,
        )  # fmt: skip
