"""Node metrics in PostgreSQL, which all servers share, for `interfaces`: a row for each node."""

from __future__ import annotations

from windlass.server.storage.interfaces import FRESH_SECONDS
from windlass.server.storage.postgres import Connection, Database

_LOCK = 7239043
_TABLES = """
CREATE TABLE IF NOT EXISTS windlass_nodereport (
    node text PRIMARY KEY, report bytea NOT NULL, told timestamptz NOT NULL DEFAULT now());
"""
_PUT = """
INSERT INTO windlass_nodereport (node, report) VALUES (%s, %s)
    ON CONFLICT (node) DO UPDATE SET report = excluded.report, told = now()"""
_COUNT = "SELECT count(*) FROM windlass_nodereport"
_FRESH = """
SELECT node, report FROM windlass_nodereport WHERE told > now() - make_interval(secs => %s)"""
_OLD = "DELETE FROM windlass_nodereport WHERE told < now() - make_interval(secs => %s)"


class PostgresNodeMetrics:
    def __init__(self, url: str) -> None:
        self._database = Database(url, "node metrics", _TABLES, _LOCK)

    async def put(self, node: str, report: bytes) -> int:
        async def work(connection: Connection) -> int:
            await connection.execute(_PUT, (node, report))
            row = await (await connection.execute(_COUNT)).fetchone()
            return int(row[0]) if row else 1

        return await self._database.do(work)

    async def fresh(self) -> dict[str, bytes]:
        async def work(connection: Connection) -> dict[str, bytes]:
            await connection.execute(_OLD, (2 * FRESH_SECONDS,))
            rows = await (await connection.execute(_FRESH, (FRESH_SECONDS,))).fetchall()
            return {node: bytes(report) for node, report in rows}

        return await self._database.do(work)

    async def close(self) -> None:
        await self._database.close()
