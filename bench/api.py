"""The object API: Windlass' embedded server against kube-apiserver + etcd.

    python -m bench.api [--json] [--quick]

Both servers run on this machine, one after the other, with the same client, over TLS, with a
bearer token, and both durable: etcd keeps its fsync and lives on the same disk as the SQLite file.
The client shares the machine's cores with the servers, so compare ratios, not absolutes.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import aiohttp
import msgspec

from bench import processes, report
from tests.harness.control_plane import ControlPlane
from tests.harness.embedded import EmbeddedServer
from windlass.store.kubernetes.config import kubeconfig, tls

CONCURRENCY = 32
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/bench/runs"
MAPS = "/api/v1/namespaces/bench/configmaps"
CRDS = Path(__file__).parent.parent / "deploy" / "crds"
MERGE = {"Content-Type": "application/merge-patch+json"}


@dataclasses.dataclass(frozen=True)
class Sizes:
    objects: int
    listed: int
    lists: int
    watchers: int
    events: int


FULL = Sizes(objects=4000, listed=10_000, lists=10, watchers=100, events=300)
QUICK = Sizes(objects=400, listed=1000, lists=3, watchers=20, events=50)


@dataclasses.dataclass
class Target:
    """A server to measure: how to reach it and which processes it is."""

    name: str
    config: Path
    pids: dict[str, int]

    def cpu(self) -> float:
        return sum(processes.cpu_seconds(pid) for pid in self.pids.values())

    def memory(self) -> dict[str, int]:
        return {name: processes.resident_bytes(pid) for name, pid in self.pids.items()}


@dataclasses.dataclass
class Measured:
    operations: int
    wall: float
    server_cpu: float
    client_cpu: float
    latencies: list[float]


class Client:
    """One pool of connections, used the same way on both servers."""

    def __init__(self, config: Path) -> None:
        access = kubeconfig.select(kubeconfig.load([config]))
        self._base = access.address
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, ssl=tls.context(access, None)),
            headers={"Authorization": f"Bearer {access.user.token}"},
        )

    async def call(self, method: str, path: str, body: Any = None, **options: Any) -> bytes:
        data = None if body is None else msgspec.json.encode(body)
        headers = {"Content-Type": "application/json"} | options.pop("headers", {})
        url = self._base + path
        async with self._session.request(method, url, data=data, headers=headers) as answer:
            content = await answer.read()
            if answer.status >= 300:
                raise RuntimeError(f"{method} {path}: {answer.status} {content[:300]!r}")
            return content

    async def lines(self, path: str) -> AsyncIterator[bytes]:
        timeout = aiohttp.ClientTimeout(total=None)
        async with self._session.get(self._base + path, timeout=timeout) as answer:
            async for line in answer.content:
                yield line

    async def close(self) -> None:
        await self._session.close()


def compare(options: report.Options) -> report.Report:
    sizes = QUICK if options.quick else FULL
    rows: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix=".bench-api-", dir=Path.cwd()) as folder:
        for start in (embedded, kubernetes):
            with start(Path(folder) / start.__name__) as target:
                rows += asyncio.run(measure(target, sizes))
    return report.Report(rows, ratios(rows))


@contextlib.contextmanager
def embedded(folder: Path) -> Iterator[Target]:
    with EmbeddedServer.start(folder) as server:
        yield Target("windlass", folder / "kubeconfig", {"server": server.process.pid})


@contextlib.contextmanager
def kubernetes(folder: Path) -> Iterator[Target]:
    with ControlPlane.start(durable=True, data_dir=folder / "etcd", controllers=False) as plane:
        plane.install_crds(CRDS)
        pids = {"kube-apiserver": plane.apiserver.pid, "etcd": plane.etcd.pid}
        yield Target("kube-apiserver", plane.kubeconfig, pids)


async def measure(target: Target, sizes: Sizes) -> list[dict[str, Any]]:
    client = Client(target.config)
    rows = [_memory_row(target, "memory idle")]
    try:
        await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": "bench"}})
        for case, work in cases(client, sizes).items():
            rows.append(_row(target.name, case, await work(target)))
        rows.append(_memory_row(target, "memory after"))
    finally:
        await client.close()
    return rows


Case = Callable[[Target], Any]


def cases(client: Client, sizes: Sizes) -> dict[str, Case]:
    count = sizes.objects
    running = {"status": {"phase": "Running", "message": "all 4 members run"}}

    def create_run(i: int) -> Any:
        return client.call("POST", RUNS, run(f"run-{i}"))

    def create_map(i: int) -> Any:
        return client.call("POST", MAPS, config_map(f"map-{i}"))

    def get_run(i: int) -> Any:
        return client.call("GET", f"{RUNS}/run-{i}")

    def patch_run(i: int) -> Any:
        return client.call("PATCH", f"{RUNS}/run-{i}/status", running, headers=MERGE)

    async def list_all(target: Target) -> Measured:
        have = sizes.objects
        await drain(target, sizes.listed - have, lambda i: create_map(have + i))
        return await drain(target, sizes.lists, lambda _: client.call("GET", MAPS), at_once=1)

    return {
        "create ConfigMap": lambda target: drain(target, count, create_map),
        "create Run": lambda target: drain(target, count, create_run),
        "create Run, one at a time": lambda target: drain(
            target, count // 10, lambda i: create_run(count + i), at_once=1
        ),
        "get Run": lambda target: drain(target, count, get_run),
        "patch Run status": lambda target: drain(target, count, patch_run),
        f"list {sizes.listed} ConfigMaps": list_all,
        f"watch fan-out to {sizes.watchers}": lambda target: fan_out(target, client, sizes),
    }


async def drain(
    target: Target, count: int, call: Callable[[int], Any], at_once: int = CONCURRENCY
) -> Measured:
    """Makes `count` calls, at most `at_once` under way, and says what they cost."""
    numbers, latencies = iter(range(count)), []

    async def worker() -> None:
        for number in numbers:
            begun = time.perf_counter()
            await call(number)
            latencies.append(time.perf_counter() - begun)

    wall, server, own = time.perf_counter(), target.cpu(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    return Measured(
        count,
        time.perf_counter() - wall,
        target.cpu() - server,
        time.process_time() - own,
        latencies,
    )


async def fan_out(target: Target, client: Client, sizes: Sizes) -> Measured:
    """Events written once and read by many: operations are events delivered."""
    start = msgspec.json.decode(await client.call("GET", MAPS + "?limit=1"))
    version = start["metadata"]["resourceVersion"]
    path = f"{MAPS}?watch=true&resourceVersion={version}"
    ready = asyncio.Barrier(sizes.watchers + 1)

    async def watcher() -> None:
        await ready.wait()
        seen = 0
        async for _ in client.lines(path):
            seen += 1
            if seen == sizes.events:
                return

    tasks = [asyncio.create_task(watcher()) for _ in range(sizes.watchers)]
    await ready.wait()
    wall, server, own = time.perf_counter(), target.cpu(), time.process_time()
    await drain(target, sizes.events, lambda i: client.call("POST", MAPS, config_map(f"seen-{i}")))
    await asyncio.gather(*tasks)
    return Measured(
        sizes.watchers * sizes.events,
        time.perf_counter() - wall,
        target.cpu() - server,
        time.process_time() - own,
        [],
    )


def run(name: str) -> dict[str, Any]:
    worker = {"replicas": 4, "command": ["python", "train.py"], "env": {"EPOCHS": "3"}}
    return {
        "apiVersion": "windlass.dev/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name, "labels": {"team": "bench"}},
        "spec": {"framework": "torch", "roles": [worker]},
    }


def config_map(name: str) -> dict[str, Any]:
    data = {"settings": "x" * 400}
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


def ratios(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Above 1 means that Windlass is better: more per second, less CPU, less memory."""
    found = {(row["server"], row["case"]): row for row in rows}
    result = {}
    for (server, case), ours in found.items():
        theirs = found.get(("kube-apiserver", case))
        if server != "windlass" or theirs is None:
            continue
        if "per_s" in ours:
            result[f"{case}: per second"] = ours["per_s"] / theirs["per_s"]
            result[f"{case}: server CPU"] = theirs["server_cpu_ms"] / ours["server_cpu_ms"]
        else:
            result[f"{case}"] = theirs["mib"] / ours["mib"]
    return {what: round(value, 2) for what, value in result.items()}


def _row(server: str, case: str, measured: Measured) -> dict[str, Any]:
    row = {
        "server": server,
        "case": case,
        "operations": measured.operations,
        "per_s": round(measured.operations / measured.wall, 1),
        "server_cpu_ms": round(1000 * measured.server_cpu / measured.operations, 4),
        "client_cpu_ms": round(1000 * measured.client_cpu / measured.operations, 4),
    }
    if measured.latencies:
        ordered = sorted(measured.latencies)
        row["p50_ms"] = round(1000 * ordered[len(ordered) // 2], 2)
        row["p99_ms"] = round(1000 * ordered[int(len(ordered) * 0.99)], 2)
    return row


def _memory_row(target: Target, case: str) -> dict[str, Any]:
    parts = target.memory()
    row: dict[str, Any] = {"server": target.name, "case": case}
    row["mib"] = round(sum(parts.values()) / 2**20, 1)
    row["parts"] = {name: round(size / 2**20, 1) for name, size in parts.items()}
    return row


if __name__ == "__main__":
    sys.exit(report.main("api", (__doc__ or "").partition("\n")[0], compare))
