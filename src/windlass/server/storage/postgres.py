"""PostgreSQL for state that all servers share, and notifications between them.

Each operation is one transaction, and is repeated when its connection breaks: it must be
idempotent. psycopg is imported here, and this module only where there is a shared database.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import psycopg
from psycopg_pool import AsyncConnectionPool, PoolTimeout

from windlass.server.storage import retry
from windlass.store import errors

_log = logging.getLogger(__name__)

_CONNECTIONS = 8
_CONNECT_SECONDS = 5
WAIT_SECONDS = 3.0
"""How long a request waits for a connection."""
Connection = psycopg.AsyncConnection[Any]
T = TypeVar("T")
_OPTIONS: dict[str, Any] = {
    "autocommit": True,
    "connect_timeout": _CONNECT_SECONDS,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
}


class Database:
    """A few tables, with a pool of connections. Used inside one event loop."""

    def __init__(self, url: str, content: str, tables: str, lock: int) -> None:
        """`content`: what the tables have, for messages. `tables`: idempotent statements that
        create them, under the advisory lock `lock`."""
        self._url = url.replace("postgresql+psycopg://", "postgresql://", 1)
        self._content = content
        self._tables = tables
        self._lock = lock
        self._created = False
        self._opened = False
        self._pool: AsyncConnectionPool[Connection] = AsyncConnectionPool(
            self._url, kwargs=_OPTIONS, min_size=0, max_size=_CONNECTIONS, open=False,
            timeout=WAIT_SECONDS, reconnect_timeout=_CONNECT_SECONDS, name=content,
        )  # fmt: skip

    async def do(self, work: Callable[[Connection], Awaitable[T]]) -> T:
        """The result of `work`, in one transaction. Unavailable: the database does not answer."""
        if not self._opened:
            self._opened = True
            await self._pool.open()
        failed = ""
        async for _ in retry.tries():
            try:
                async with self._pool.connection() as connection:
                    if not self._created:
                        await self._create_tables(connection)
                    async with connection.transaction():
                        return await work(connection)
            except PoolTimeout:
                failed = failed or "no connection could be made"
                break
            except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
                failed = _text(problem)
                await self._pool.check()  # other idle connections are broken as well
        raise errors.Unavailable(
            f"the database of {self._content} does not answer: {failed}; try again when it does",
            retry_after=1.0,
        )

    async def listen(
        self, channel: str, notified: Callable[[str], None], resumed: Callable[[], None]
    ) -> None:
        """Calls `notified` with each payload on a channel until cancelled, and `resumed` after
        every connection: notifications may have been missed before it."""
        while True:
            try:
                async with await psycopg.AsyncConnection.connect(
                    self._url, **_OPTIONS
                ) as connection:
                    await connection.execute(f'LISTEN "{channel}"')
                    resumed()
                    async for each in connection.notifies():
                        notified(each.payload)
            except (psycopg.OperationalError, psycopg.InterfaceError) as problem:
                _log.warning("notifications of %s are late: %s", self._content, _text(problem))
            await asyncio.sleep(retry.FIRST_PAUSE)

    async def close(self) -> None:
        await self._pool.close()

    async def _create_tables(self, connection: Connection) -> None:
        async with connection.transaction():
            await connection.execute("SELECT pg_advisory_xact_lock(%s)", (self._lock,))
            await connection.execute(self._tables.encode())
        self._created = True


def _text(problem: Exception) -> str:
    return " ".join(str(problem).split())[:200]
