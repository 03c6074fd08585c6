"""What a large cluster costs our processes: memory, time to the first decision, time per decision.

    python -m bench.scale [--json] [--quick]

5,000 nodes that KWOK plays, and 50,000 pods that run on them, on a real API server. When all
is quiet the scheduler starts: `restart_s` is from the start of its process to the binding of a pod
that waits. Then pods come one at a time: `cycle_ms` is
what a decision took, by the scheduler's own metrics, `bind_ms` from POST to binding.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import time
from collections.abc import Iterator

import uvloop

from bench import processes, report
from bench.kubernetes import Json, Plane, is_bound, pod, scheduler_decisions
from tests.harness.processes import Process

SINGLES = 20


def measure(options: report.Options) -> report.Report:
    return uvloop.run(_measure(*((500, 5_000) if options.quick else (5_000, 50_000))))


async def _measure(nodes: int, pods: int) -> report.Report:
    done = report.Report()
    async with Plane() as plane:
        await plane.add_nodes(nodes)
        await plane.add_queues({"name": "default"})
        for name in ("load", "new"):
            await plane.add_namespace(name)
        _say(f"{pods} pods on {nodes} nodes")
        load = "/api/v1/namespaces/load/pods"
        async with plane.watching(load, lambda line: b'"phase":"Running"' in line) as started:
            kwok = plane.plane.start_kwok()
            await plane.make(load, _bound_pods(nodes, pods))
            await started.reach(pods)
        controllers = plane.start("controllers")
        await _settled(kwok, controllers)
        path = "/api/v1/namespaces/new/pods"
        async with plane.watching(path, is_bound) as bound:
            await plane.post(path, pod("first", "windlass"))
            begun = time.perf_counter()
            scheduler = plane.start("scheduler")
            with plane.accounts(scheduler=scheduler) as used:
                await bound.reach(1)
            restart = max(bound.times.values()) - begun
            before, waited = scheduler_decisions(scheduler), []
            for number in range(SINGLES):
                asked = time.perf_counter()
                await plane.post(path, pod(f"single-{number}", "windlass"))
                await bound.reach(number + 2)
                waited.append(time.perf_counter() - asked)
            took, count = (
                b - a for a, b in zip(before, scheduler_decisions(scheduler), strict=True)
            )
        size = {"nodes": nodes, "pods": pods}
        done.rows.append(
            {
                "process": "scheduler", **size,
                "memory_MiB": processes.resident_bytes(scheduler.pid) >> 20,
                "restart_s": round(restart, 2), "restart_cpu_s": round(used["scheduler"], 2),
                "cycle_ms": round(1000 * took / max(count, 1), 2),
                "bind_ms": round(1000 * statistics.median(waited), 1),
            }
        )  # fmt: skip
        memory = processes.resident_bytes(controllers.pid) >> 20
        done.rows.append({"process": "controllers", **size, "memory_MiB": memory})
    return done


async def _settled(*busy: Process) -> None:
    """Returns when none of them does much any more: a cluster in which all starts at once is not
    what a scheduler that starts again finds."""
    while True:
        before = [processes.cpu_seconds(each.pid) for each in busy]
        await asyncio.sleep(2.0)
        after = [processes.cpu_seconds(each.pid) for each in busy]
        if all(b - a < 0.1 for a, b in zip(before, after, strict=True)):
            return


def _bound_pods(nodes: int, count: int) -> Iterator[Json]:
    for number in range(count):
        made = pod(f"p{number}", "other")
        made["spec"]["nodeName"] = f"n{number % nodes:05}"
        resources = made["spec"]["containers"][0]["resources"]
        if number // nodes >= 7:  # leaves devices for those who come
            resources.pop("limits")
            resources["requests"].pop("nvidia.com/gpu")
        yield made


def _say(what: str) -> None:
    print(f"bench.scale: {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(report.main("scale", __doc__.split("\n", 1)[0], measure))
