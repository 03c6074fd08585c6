"""How fast pods are placed on a real API server: ours beside kube-scheduler, on the same machine.

    python -m bench.cluster [--json] [--quick] [--nodes N] [--pods N]

5,000 nodes and 10,000 pods that exist before the clock starts; it starts with the scheduler's
process, so reading the cluster counts. Placed by pods/binding, both with client limits lifted, each
case on an API server and etcd of its own. Then Runs without a rival: from POST to the last pod
created. CPU is in milliseconds per pod, of each process; wall clocks mean little on a busy machine
(see `load`).
"""

from __future__ import annotations

import argparse
import contextlib
import sys
import time
from collections.abc import AsyncIterator
from typing import Any

import uvloop

from bench import processes, report
from bench.kubernetes import Json, Plane, is_bound, pod
from tests.harness.processes import Process

RIVAL = "kube-scheduler"
RUNS = "/apis/windlass.dev/v1alpha1/namespaces/runs/runs"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--nodes", type=int, help="default 5000, quick 500")
    parser.add_argument("--pods", type=int, help="default 10000, quick 1000")
    parser.add_argument("--only", default="", help="rows whose name contains this")


def measure(options: report.Options) -> report.Report:
    return uvloop.run(_measure(options))


async def _measure(options: report.Options) -> report.Report:
    nodes = options.extra.nodes or (500 if options.quick else 5000)
    pods = options.extra.pods or (1000 if options.quick else 10_000)
    only = options.extra.only
    done = report.Report()
    cases = [(RIVAL, 1), ("windlass", 1), ("windlass", 8), ("windlass", 64)]
    for who, size in cases:
        if only in _name(who, size):
            async with _cluster(nodes) as plane:
                _say(f"{_name(who, size)}: {pods} pods on {nodes} nodes")
                done.rows.append(await _place(plane, who, size, pods))
    if only in "runs":
        async with _cluster(nodes) as plane:
            _say("runs")
            await plane.add_namespace("runs")
            done.rows += await _runs(plane, gang=64 if options.quick else 512)
    done.ratios = _ratios(done.rows)
    done.notes.append("ratios of CPU are sums over scheduler, API server and etcd, per pod")
    return done


@contextlib.asynccontextmanager
async def _cluster(nodes: int) -> AsyncIterator[Plane]:
    """A control plane of its own for each case: an API server that has thousands of deleted pods
    behind it is a fifth slower, and the last case would be measured on it."""
    async with Plane() as plane:
        await plane.add_nodes(nodes)
        await plane.add_queues({"name": "default"})
        yield plane


async def _place(plane: Plane, who: str, size: int, count: int) -> report.Row:
    namespace = f"b-{'k' if who == RIVAL else 'w'}{size}"
    await plane.add_namespace(namespace)
    path = f"/api/v1/namespaces/{namespace}/pods"
    await plane.make(path, _pods(who, size, count))
    async with plane.watching(path, is_bound) as bound:
        begun = time.perf_counter()
        process = plane.plane.start_scheduler() if who == RIVAL else plane.start("scheduler")
        with plane.accounts(scheduler=process) as used:
            await bound.reach(count)
        memory = processes.resident_bytes(process.pid) >> 20
    moments = sorted(bound.times.values())
    process.stop(seconds=30)
    return _row(_name(who, size), count, begun, moments, used, memory)


def _row(
    name: str, count: int, begun: float, moments: list[float], used: dict[str, float], memory: int
) -> report.Row:
    last = moments[-1] - begun
    return {
        "case": name,
        "pods": count,
        "pods_per_s": round(count / last, 1),
        "first_s": round(moments[0] - begun, 2),
        "last_s": round(last, 2),
        **{f"{each}_ms": round(1000 * cpu / count, 3) for each, cpu in used.items()},
        "cpu_ms": round(1000 * sum(used.values()) / count, 3),
        "memory_MiB": memory,
    }


def _pods(who: str, size: int, count: int) -> list[Json]:
    if who == RIVAL:
        return [pod(f"p{i}", "default-scheduler") for i in range(count)]
    if size == 1:
        return [pod(f"p{i}", "windlass") for i in range(count)]
    told = [
        {"windlass.dev/gang": f"g{i // size}", "windlass.dev/gang-size": str(size)}
        for i in range(count - count % size)
    ]
    rest = [pod(f"s{i}", "windlass") for i in range(count % size)]
    return [pod(f"p{i}", "windlass", each) for i, each in enumerate(told)] + rest


async def _runs(plane: Plane, gang: int) -> list[report.Row]:
    """From POST of a Run to its last pod created, with both of our processes."""
    ours = {name: plane.start(name) for name in ("scheduler", "controllers")}
    await _one_run(plane, "warm-up", 1, ours)
    return [
        await _one_run(plane, "run of 1", 1, ours),
        await _one_run(plane, f"run of {gang}", gang, ours),
    ]


async def _one_run(plane: Plane, name: str, members: int, ours: dict[str, Process]) -> report.Row:
    resources = {"cpu": "1", "memory": "1Gi"}
    role: dict[str, Any] = {
        "name": "worker", "replicas": members, "command": ["true"], "resources": resources,
    }  # fmt: skip
    body = {
        "apiVersion": "windlass.dev/v1alpha1", "kind": "Run",
        "metadata": {"name": name.replace(" ", "-")}, "spec": {"roles": [role]},
    }  # fmt: skip
    path = "/api/v1/namespaces/runs/pods"
    async with plane.watching(path, lambda line: line.startswith(b'{"type":"ADDED"')) as made:
        with plane.accounts(**ours) as used:
            begun = time.perf_counter()
            await plane.make(RUNS, [body])
            await made.reach(members)
    moments = sorted(made.times.values())
    memory = sum(processes.resident_bytes(each.pid) for each in ours.values()) >> 20
    return _row(name, members, begun, moments, used, memory)


def _name(who: str, size: int) -> str:
    return f"{who} {'singles' if size == 1 else f'gangs of {size}'}"


def _ratios(rows: list[report.Row]) -> dict[str, float]:
    by_name = {row["case"]: row for row in rows}
    rival = by_name.get(_name(RIVAL, 1))
    found = {}
    for size in (1, 8, 64):
        ours = by_name.get(_name("windlass", size))
        if rival is not None and ours is not None:
            what = _name("windlass", size)
            found[f"{what}: pods per second"] = report.ratio(
                ours["pods_per_s"], rival["pods_per_s"]
            )
            found[f"{what}: CPU per pod"] = report.ratio(rival["cpu_ms"], ours["cpu_ms"])
    return found


def _say(what: str) -> None:
    print(f"bench.cluster: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(report.main("cluster", __doc__.split("\n", 1)[0], measure, configure))
