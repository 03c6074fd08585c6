"""The embedded server under many objects and many watchers: memory, latency, one stuck watcher.

Run as `python -m bench.load`; `tests/load` uses the same parts at other sizes. There is no rival
here: `bench.api` compares with kube-apiserver. The ratio shows what a watcher that never reads
costs everybody else (1: nothing).
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import aiohttp

from bench import report
from tests.faults.driver import Door
from tests.harness.embedded import EmbeddedServer

COLLECTION = "/api/v1/namespaces/default/configmaps"
WORKERS = 16


@dataclasses.dataclass(slots=True)
class Latency:
    """Seconds that requests took, and how long all of them together."""

    seconds: list[float]
    wall: float

    def row(self, what: str) -> report.Row:
        cuts = statistics.quantiles(self.seconds, n=100)
        return {
            "what": what,
            "requests": len(self.seconds),
            "perSecond": round(len(self.seconds) / self.wall),
            "p50Ms": round(cuts[49] * 1e3, 2),
            "p99Ms": round(cuts[98] * 1e3, 2),
        }


class Load:
    """One server and its clients."""

    def __init__(self, server: EmbeddedServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self._door = Door.to(server)
        self._session = session

    def rss(self) -> int:
        """Bytes of the server's memory now."""
        status = Path(f"/proc/{self.server.process.pid}/status").read_text()
        line = next(line for line in status.splitlines() if line.startswith("VmRSS"))
        return int(line.split()[1]) * 1024

    async def request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
        async with self._session.request(
            method,
            self._door.url + path,
            data=None if body is None else json.dumps(body).encode(),
            headers=self._door.headers | {"Content-Type": kind},
            ssl=self._door.tls,
        ) as response:
            answer: dict[str, Any] = await response.json()
            if response.status >= 400:
                raise RuntimeError(f"{method} {path}: {answer}")
            return answer

    async def many(self, requests: list[tuple[str, str, Any]]) -> Latency:
        """All requests, WORKERS at a time."""
        waiting = iter(requests)
        seconds: list[float] = []

        async def work() -> None:
            for method, path, body in waiting:
                begun = time.perf_counter()
                await self.request(method, path, body)
                seconds.append(time.perf_counter() - begun)

        begun = time.perf_counter()
        await asyncio.gather(*(work() for _ in range(WORKERS)))
        return Latency(seconds, time.perf_counter() - begun)

    async def create(self, count: int, size: int) -> Latency:
        return await self.many([("POST", COLLECTION, _object(i, size)) for i in range(count)])

    async def change(self, count: int, objects: int, size: int, mark: str) -> Latency:
        """Patches, each with a mark of its own."""
        return await self.many(
            [
                ("PATCH", f"{COLLECTION}/object-{i % objects}", _change(f"{mark}-{i}", size))
                for i in range(count)
            ]
        )

    async def read(self, count: int, objects: int) -> Latency:
        spread = [(i * 7919) % objects for i in range(count)]
        return await self.many([("GET", f"{COLLECTION}/object-{i}", None) for i in spread])

    async def version(self) -> str:
        listed = await self.request("GET", COLLECTION + "?limit=1")
        return str(listed["metadata"]["resourceVersion"])

    async def watch(self, version: str) -> aiohttp.ClientResponse:
        """An open watch; a client that does not read from it is a stuck watcher."""
        return await self._session.get(
            f"{self._door.url}{COLLECTION}?watch=1&resourceVersion={version}",
            headers=self._door.headers,
            ssl=self._door.tls,
        )


async def marks(response: aiohttp.ClientResponse, count: int) -> list[str]:
    """The marks of the next changes that a watch delivers."""
    found: list[str] = []
    async for line in response.content:
        event = json.loads(line)
        if event["type"] == "ERROR":
            raise RuntimeError(str(event["object"]))
        found.append(event["object"]["metadata"]["annotations"]["mark"])
        if len(found) == count:
            break
    return found


def session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        read_bufsize=1 << 20,
    )


async def _measure(options: report.Options, state: Path) -> report.Report:
    objects, watchers, changes = (4000, 40, 400) if options.quick else (50_000, 200, 2000)
    found = report.Report()
    with EmbeddedServer.start(state) as server:
        async with session() as client:
            load = Load(server, client)
            found.rows.append({"what": "idle", "serverMiB": _mib(load)})
            created = await load.create(objects, 600)
            found.rows.append(created.row(f"create {objects} objects") | {"serverMiB": _mib(load)})
            got = await load.read(changes, objects)
            found.rows.append(got.row("get") | {"serverMiB": _mib(load)})
            alone = await _changes_seen(load, changes, objects, watchers, stuck=0)
            found.rows += alone
            beside = await _changes_seen(load, changes, objects, watchers, stuck=1)
            found.rows += beside
    vs = "write p50 without vs with a stuck watcher"
    found.ratios[vs] = report.ratio(alone[0]["p50Ms"], beside[0]["p50Ms"])
    return found


async def _changes_seen(
    load: Load, changes: int, objects: int, watchers: int, stuck: int
) -> list[report.Row]:
    """Writes while watchers follow; returns how long the writes took and when all watchers had
    them."""
    version = await load.version()
    silent = [await load.watch(version) for _ in range(stuck)]
    following = [await load.watch(version) for _ in range(watchers)]
    told = [asyncio.create_task(marks(response, changes)) for response in following]
    begun = time.perf_counter()
    wrote = await load.change(changes, objects, 600, f"with{stuck}stuck")
    await asyncio.gather(*told)
    wall = time.perf_counter() - begun
    memory = _mib(load)
    for response in (*silent, *following):
        response.close()
    beside = f"{watchers} watchers" + (f" and {stuck} stuck" if stuck else "")
    return [
        wrote.row(f"patch beside {beside}") | {"serverMiB": memory},
        {"what": f"all told to {beside}", "requests": changes * watchers,
         "perSecond": round(changes * watchers / wall)},
    ]  # fmt: skip


def _object(index: int, size: int) -> dict[str, Any]:
    return {
        "metadata": {"name": f"object-{index}", "annotations": {"mark": f"made-{index}"}},
        "data": {"filling": "x" * size},
    }


def _change(mark: str, size: int) -> dict[str, Any]:
    return {"metadata": {"annotations": {"mark": mark}}, "data": {"filling": "y" * size}}


def _mib(load: Load) -> float:
    return round(load.rss() / 2**20, 1)


def measure(options: report.Options) -> report.Report:
    with tempfile.TemporaryDirectory(prefix="windlass-load-") as folder:
        return asyncio.run(_measure(options, Path(folder) / "state"))


if __name__ == "__main__":
    sys.exit(report.main("load", __doc__.splitlines()[0], measure))
