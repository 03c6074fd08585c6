"""How soon runs get capacity when 15,000 come to thirty queues: the shape that Kueue publishes.

    python -m bench.admission [--json] [--quick]

5 trees of 6 queues (guarantee 20, borrow 100); to each queue come 350 small, 100 medium and 50
large runs, one every 100, 500 and 1,200 ms, that take 200, 500 and 1,000 ms, ask for 1, 5 and 20
cpu and have the priorities 50, 100 and 200. Real API server and etcd, our scheduler as a process;
nobody makes pods: the mimic in here watches for assignments and reports success after the run time.
Admission is from POST to the assignment as the watch shows it. Kueue needs 410 s on a machine of
this size (it publishes 351 s); 66 s would be ideal.
"""

from __future__ import annotations

import asyncio
import dataclasses
import re
import statistics
import sys
import time
from collections.abc import Iterator

import msgspec
import uvloop

from bench import report
from bench.kubernetes import Json, Plane, scheduler_decisions

IDEAL, KUEUE = 66.0, 410.0
TREES, QUEUES = 5, 6
GUARANTEE, BORROW = 20, 100
RUNS = "/apis/windlass.dev/v1alpha1/runs"
_WRITES = re.compile(r'^apiserver_request_total\{[^}]*resource="runs"[^}]*\} ([0-9.e+]+)$', re.M)
_VERBS = ('verb="POST"', 'verb="PATCH"', 'verb="PUT"', 'verb="DELETE"')


@dataclasses.dataclass(frozen=True, slots=True)
class Class:
    name: str
    count: int
    every: float
    runs: float
    cpu: int
    priority: int


CLASSES = (
    Class("small", 350, 0.1, 0.2, 1, 50),
    Class("medium", 100, 0.5, 0.5, 5, 100),
    Class("large", 50, 1.2, 1.0, 20, 200),
)


class _Room(msgspec.Struct):
    """Only whether there is any counts."""


class _Status(msgspec.Struct):
    phase: str = ""
    assignment: _Room | None = None


class _Meta(msgspec.Struct):
    name: str
    namespace: str = ""


class _Run(msgspec.Struct):
    metadata: _Meta
    status: _Status = msgspec.field(default_factory=_Status)


class _Event(msgspec.Struct):
    type: str
    object: _Run


class Mimic:
    """What the run controller and the nodes would do, for runs whose only work is to wait."""

    def __init__(self, plane: Plane) -> None:
        self._plane = plane
        self._decoder = msgspec.json.Decoder(_Event)
        self._working: dict[str, asyncio.Task[None]] = {}
        self.created: dict[str, float] = {}
        self.admitted: dict[str, float] = {}
        self.ended: dict[str, float] = {}
        self.taken_back = 0
        self._more = asyncio.Event()
        self._classes = {each.name: each for each in CLASSES}

    def see(self, line: bytes) -> bool:
        """One event of the watch."""
        event = self._decoder.decode(line)
        run = event.object
        name, has_room = run.metadata.name, run.status.assignment is not None
        working = self._working.get(name)
        if run.status.phase == "Succeeded":
            # Also if its capacity was taken back while the report was on its way.
            self.ended.setdefault(name, time.perf_counter())
            self._working.pop(name, None)
            self._more.set()
            return False
        if has_room and working is None:
            self.admitted[name] = time.perf_counter()
            self._working[name] = asyncio.create_task(self._work(run.metadata))
        elif not has_room and working is not None:
            working.cancel()  # preempted before it ended
            del self._working[name]
            self.taken_back += 1
        return False

    async def all_ended(self) -> None:
        while len(self.ended) < len(self.created):
            self._more.clear()
            await self._more.wait()

    async def _work(self, who: _Meta) -> None:
        await asyncio.sleep(self._classes[who.name.split("-")[0]].runs)
        path = f"/apis/windlass.dev/v1alpha1/namespaces/{who.namespace}/runs/{who.name}/status"
        status, _, body = await self._plane.store.raw(
            "PATCH", path, body=b'{"status":{"phase":"Succeeded"}}',
            content_type="application/merge-patch+json",
        )  # fmt: skip
        if status != 200:
            raise SystemExit(f"{path}: {status} {body[:200]!r}")


def measure(options: report.Options) -> report.Report:
    return uvloop.run(_measure(10 if options.quick else 1))


async def _measure(part: int) -> report.Report:
    async with Plane() as plane:
        await plane.add_nodes(10, cpu="1000", pods="5000")
        await plane.add_queues(*_queues())
        for tree in range(TREES):
            for number in range(QUEUES):
                await plane.add_namespace(f"q{tree}{number}")
        scheduler = plane.start("scheduler")
        scheduler.wait_ready(lambda: scheduler_decisions(scheduler)[1] > 0)
        mimic = Mimic(plane)
        async with plane.watching(RUNS, mimic.see):
            before = _writes(plane)
            begun = time.perf_counter()
            with plane.accounts(scheduler=scheduler) as used:
                await asyncio.gather(
                    *(
                        _come(plane, mimic, f"q{tree}{number}", each, part)
                        for tree in range(TREES)
                        for number in range(QUEUES)
                        for each in CLASSES
                    )
                )
                await mimic.all_ended()
            wall = max(mimic.ended.values()) - begun
            writes = _writes(plane) - before
    return _report(mimic, wall, writes, used, part)


async def _come(plane: Plane, mimic: Mimic, queue: str, each: Class, part: int) -> None:
    path = f"/apis/windlass.dev/v1alpha1/namespaces/{queue}/runs"
    begun = time.perf_counter()
    for number in range(each.count // part):
        await asyncio.sleep(max(0.0, begun + number * each.every - time.perf_counter()))
        name = f"{each.name}-{queue}-{number}"
        mimic.created[name] = time.perf_counter()
        await plane.post(path, _run(name, queue, each))


def _run(name: str, queue: str, each: Class) -> Json:
    resources = {"cpu": str(each.cpu), "memory": "1Mi"}
    return {
        "apiVersion": "windlass.dev/v1alpha1",
        "kind": "Run",
        "metadata": {"name": name},
        "spec": {
            "queue": queue,
            "priority": each.priority,
            "roles": [{"command": ["true"], "resources": resources}],
        },
    }


def _queues() -> Iterator[Json]:
    for tree in range(TREES):
        yield {"name": f"tree{tree}", "spec": {"limit": {"cpu": GUARANTEE * QUEUES}}}
        for number in range(QUEUES):
            name = f"q{tree}{number}"
            yield {
                "name": name,
                "spec": {
                    "parent": f"tree{tree}", "order": "priority", "namespaces": [name],
                    "guarantee": {"cpu": GUARANTEE}, "limit": {"cpu": GUARANTEE + BORROW},
                },
            }  # fmt: skip


def _writes(plane: Plane) -> float:
    """Writes of Run objects that the API server has served."""
    text = plane.plane.rest.get("/metrics").body.decode()
    return sum(
        float(found[1]) for found in _WRITES.finditer(text) if any(v in found[0] for v in _VERBS)
    )


def _report(
    mimic: Mimic, wall: float, writes: float, used: dict[str, float], part: int
) -> report.Report:
    done = report.Report()
    for each in CLASSES:
        waited = [
            mimic.admitted[name] - at
            for name, at in mimic.created.items()
            if name.startswith(each.name)
        ]
        done.rows.append(
            {
                "class": each.name,
                "runs": len(waited),
                "mean_admission_s": round(statistics.fmean(waited), 3),
                "p99_admission_s": round(statistics.quantiles(waited, n=100)[98], 3),
            }
        )
    count = len(mimic.created)
    done.rows.append(
        {
            "class": "total", "runs": count, "wall_s": round(wall, 1),
            "x_ideal": round(wall / IDEAL, 2), "writes_per_run": round(writes / count, 2),
            "preempted": mimic.taken_back,
            **{f"{name}_ms": round(1000 * cpu / count, 2) for name, cpu in used.items()},
        }
    )  # fmt: skip
    if part == 1:
        done.ratios["wall against Kueue's 410 s on such a machine"] = report.ratio(KUEUE, wall)
    else:
        done.notes.append("quick: a tenth of the runs; x_ideal means nothing then")
    done.notes.append("writes_per_run: POST, assignment, the mimic's success, and words")
    return done


if __name__ == "__main__":
    sys.exit(report.main("admission", __doc__.split("\n", 1)[0], measure))
