"""A real control plane with many nodes, for benchmarks: its objects, the schedulers beside it, and
when pods were bound or created. Nodes are plain objects; no kubelet starts anything."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import msgspec

from bench import processes, report
from tests.harness.control_plane import ControlPlane
from tests.harness.parts import scrape, token_of
from tests.harness.plugin import CRDS
from tests.harness.processes import Process, free_ports
from tests.harness.waiting import until
from windlass.install import apply
from windlass.install.manifests import policies
from windlass.store import connect
from windlass.store.kubernetes.client import KubernetesStore

Json = dict[str, Any]
AT_ONCE = 48
_VERSION = re.compile(rb'"resourceVersion":"([^"]+)"')
_NAME = re.compile(rb'"name":"([^"]+)"')
_PATIENCE = 900.0
_SUM = re.compile(r"^windlass_scheduler_decide_seconds_sum(?:\{[^}]*\})? ([0-9.e+-]+)$", re.M)
_COUNT = re.compile(r"^windlass_scheduler_decide_seconds_count(?:\{[^}]*\})? ([0-9.e+-]+)$", re.M)


class Plane:
    """A control plane for one benchmark; `async with` it."""

    def __init__(self, **options: Any) -> None:
        report.keep_bytecode()
        subprocess.run(
            [sys.executable, "-m", "windlass.control", "--help"], capture_output=True, check=True
        )
        self.plane = ControlPlane.start(crds=CRDS, controllers=False, **options)
        self.store: KubernetesStore = connect.open_store(str(self.plane.kubeconfig))
        self._ours: list[Process] = []

    async def __aenter__(self) -> Plane:
        await self.make("/api/v1/namespaces", [{"metadata": {"name": "windlass-system"}}])
        # What the CRDs leave to policies, and what makes writes of Runs cheaper.
        for each in (*policies.changes(), *policies.unaccounted()):
            await self.make(apply.path_of(each).rpartition("/")[0], [each])
        until(self._is_unaccounted, "the policies are in force")
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.store.close()
        for process in self._ours:
            process.kill()
        self.plane.stop()

    def _is_unaccounted(self) -> bool:
        run = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Run", "metadata": {"name": "try"},
            "spec": {"roles": [{"command": ["true"]}]},
        }  # fmt: skip
        path = "/apis/windlass.dev/v1alpha1/namespaces/windlass-system/runs"
        tried = self.plane.rest.request("POST", path, run, dryRun="All")
        return tried.status == 201 and "managedFields" not in tried.json["metadata"]

    # --- contents

    async def make(self, path: str, bodies: Iterable[Json]) -> None:
        """Creates all, many at once."""
        left = iter(bodies)

        async def some() -> None:
            for body in left:
                await self.post(path, body)

        await asyncio.gather(*(some() for _ in range(AT_ONCE)))

    async def post(self, path: str, body: Json) -> None:
        status, _, answer = await self.store.raw("POST", path, body=msgspec.json.encode(body))
        if status != 201:
            raise SystemExit(f"{path}: {status} {answer[:300]!r}")

    async def add_nodes(self, count: int, **amounts: str) -> None:
        has = {"cpu": "128", "memory": "2Ti", "pods": "110", "nvidia.com/gpu": "8", **amounts}
        await self.make("/api/v1/nodes", (_node(i, has) for i in range(count)))

    async def add_queues(self, *queues: Json) -> None:
        head = {"apiVersion": "windlass.dev/v1alpha1", "kind": "Queue"}
        await self.make(
            "/apis/windlass.dev/v1alpha1/queues",
            ({**head, "metadata": {"name": name}, "spec": spec} for name, spec in
             ((each["name"], each.get("spec", {})) for each in queues)),
        )  # fmt: skip

    async def add_namespace(self, name: str) -> None:
        await self.make("/api/v1/namespaces", [{"metadata": {"name": name}}])
        account = {"metadata": {"name": "default"}}
        await self.make(f"/api/v1/namespaces/{name}/serviceaccounts", [account])

    # --- processes

    def start(self, name: str) -> Process:
        """`scheduler` or `controllers`: one of our processes."""
        port, metrics = free_ports(2)
        command: list[str | Path] = [
            sys.executable, "-m", "windlass.control", name,
            "--kubeconfig", self.plane.kubeconfig,
            "--listen", f"127.0.0.1:{port}", "--metrics-listen", f"127.0.0.1:{metrics}",
        ]  # fmt: skip
        process = Process(name, command, self.plane.directory / f"{name}-{port}.log")
        process.start()
        self._ours.append(process)
        return process

    @contextlib.contextmanager
    def accounts(self, **more: Process) -> Iterator[dict[str, float]]:
        """CPU seconds that each process used inside; filled in at the end."""
        watched = {"apiserver": self.plane.apiserver, "etcd": self.plane.etcd, **more}
        begun = {name: processes.cpu_seconds(each.pid) for name, each in watched.items()}
        used: dict[str, float] = {}
        yield used
        for name, each in watched.items():
            used[name] = processes.cpu_seconds(each.pid) - begun[name]

    # --- what happens

    @contextlib.asynccontextmanager
    async def watching(self, path: str, counts: Callable[[bytes], bool]) -> AsyncIterator[Tally]:
        """Notes when each object first was so that its event counts."""
        tally = Tally(counts)
        query = [("watch", "true"), ("resourceVersion", await self._version(path))]
        task = asyncio.create_task(self._follow(tally, path, query))
        try:
            yield tally
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def _version(self, path: str) -> str:
        status, _, body = await self.store.raw("GET", path, query=[("limit", "1")])
        assert status == 200, body
        return str(msgspec.json.decode(body)["metadata"]["resourceVersion"])

    async def _follow(self, tally: Tally, path: str, query: list[tuple[str, str]]) -> None:
        """Also when the server cuts the watch: it does that to watchers that are slow to read."""
        while True:
            try:
                await tally.follow(self.store.text(path, query))
            except Exception as problem:
                print(f"the benchmark's own watch failed: {problem!r}", file=sys.stderr)
                os._exit(1)  # nobody else would notice, and wait for ever
            query = [("watch", "true"), ("resourceVersion", tally.version or query[1][1])]


class Tally:
    """When things happened, by the name of the object; read from the raw watch for its cost."""

    def __init__(self, counts: Callable[[bytes], bool]) -> None:
        self.times: dict[bytes, float] = {}
        self.version = ""
        self._counts = counts
        self._more = asyncio.Event()

    async def follow(self, pieces: AsyncIterator[bytes]) -> None:
        rest = b""
        async for piece in pieces:
            *lines, rest = (rest + piece).split(b"\n")
            now = time.perf_counter()
            for line in lines:
                if found := _VERSION.search(line):
                    self.version = found[1].decode()
                if self._counts(line) and (found := _NAME.search(line)):
                    self.times.setdefault(found[1], now)
            self._more.set()

    async def reach(self, count: int, patience: float = _PATIENCE) -> None:
        async with asyncio.timeout(patience):
            while len(self.times) < count:
                self._more.clear()
                await self._more.wait()


def scheduler_decisions(scheduler: Process) -> tuple[float, float]:
    """Seconds and number of its decisions so far."""
    words = list(scheduler.command)
    token = token_of(Path(words[words.index("--kubeconfig") + 1]))
    text = scrape(f"http://{words[-1]}/metrics", token)  # no figure in it: it does not answer yet
    total, count = _SUM.search(text), _COUNT.search(text)
    return (float(total[1]) if total else 0.0), (float(count[1]) if count else 0.0)


def is_bound(line: bytes) -> bool:
    return b'"nodeName":"' in line


def pod(name: str, scheduler: str, annotations: dict[str, str] | None = None) -> Json:
    amounts = {"cpu": "1", "memory": "1Gi", "nvidia.com/gpu": "1"}
    resources = {"requests": amounts, "limits": {"nvidia.com/gpu": "1"}}
    return {
        "metadata": {"name": name, "labels": {"app": "bench"}, "annotations": annotations or {}},
        "spec": {
            "schedulerName": scheduler,
            "automountServiceAccountToken": False,
            "containers": [{"name": "main", "image": "none", "resources": resources}],
            "tolerations": [{"operator": "Exists"}],
        },
    }


def _node(number: int, has: dict[str, str]) -> Json:
    name = f"n{number:05}"
    return {
        "metadata": {
            "name": name,
            "labels": {
                "kubernetes.io/hostname": name,
                "topology.kubernetes.io/zone": f"z{number % 3}",
                "windlass.dev/gpu-model": "a100",
            },
        },
        "status": {
            "capacity": has,
            "allocatable": has,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }
