"""The worst wait of a head: Windlass against conservative backfill, on the same traces.

Conservative backfill is the textbook algorithm, written here without the core: a workload gets its
reservation when it is submitted, at the earliest time at which all its members fit beside all
earlier reservations, and none is ever moved. With honest runtimes that is the whole schedule. It is
the most cautious of the usual algorithms: no workload is delayed by one that was submitted later.

Per trace, for both: mean and worst wait, and the worst wait of a head. A workload is a head from
the moment at which all that were submitted before it have started. Windlass has default settings.
If its worst head wait is more than 1.2 times the rival's, the exit code is 1.
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from bench import report
from windlass.sim import engine, overrides, policy_grid
from windlass.sim.inputs import loader
from windlass.sim.scenario import Scenario, with_runtimes

TRACES = (
    "itp/02", "itp/05", "itp/06", "itp/08", "itp/09", "philly/0e4a51", "philly/103959",
    "philly/11cb48", "philly/6214e9", "philly/6c71a0", "philly/e13805", "philly/ed69ec",
)  # fmt: skip
QUICK_TRACES = ("itp/06", "philly/6c71a0")
BAR = 1.2

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True)
class Rigid:
    """A workload as the textbook has it: so many members with so many GPUs each, for so long."""

    submitted: float
    members: int
    gpus: int
    seconds: float


class Profile:
    """GPUs of every node that are reserved, over time: a row holds until the time of the next."""

    def __init__(self, nodes: int, gpus: int) -> None:
        self._gpus = gpus
        self._times = [0.0]
        self._used: list[Ints] = [np.zeros(nodes, np.int64)]

    def reserve(self, job: Rigid) -> float:
        """The earliest start, from now on reserved on the nodes with the fewest GPUs left."""
        self._forget(job.submitted)
        at = self._split(job.submitted)
        while (taken := self._place(at, job)) is None:
            at += 1
        start = self._times[at]
        for row in range(at, self._split(start + job.seconds)):
            self._used[row] += taken * job.gpus
        return start

    def _place(self, first: int, job: Rigid) -> Ints | None:
        """Members by node, if all fit from a row on until the job ends."""
        until, last = self._times[first] + job.seconds, first + 1
        while last < len(self._times) and self._times[last] < until:
            last += 1
        free: Ints = self._gpus - np.max(self._used[first:last], axis=0)
        room: Ints = free // job.gpus
        if room.sum() < job.members:
            return None
        taken: Ints = np.zeros_like(room)
        left = job.members
        for node in np.lexsort((np.arange(len(free)), free)):
            taken[node] = min(left, max(0, int(room[node])))
            left -= int(taken[node])
        return taken

    def _split(self, time: float) -> int:
        """The number of the row that begins at this time."""
        row = int(np.searchsorted(self._times, time))
        if row == len(self._times) or self._times[row] != time:
            self._times.insert(row, time)
            self._used.insert(row, self._used[row - 1].copy())
        return row

    def _forget(self, time: float) -> None:
        while len(self._times) > 1 and self._times[1] <= time:
            del self._times[0], self._used[0]


def starts(jobs: Iterable[Rigid], nodes: int, gpus: int) -> list[float]:
    """When conservative backfill starts each; jobs in the order of submission."""
    profile = Profile(nodes, gpus)
    return [profile.reserve(job) for job in jobs]


def head_waits(submitted: Sequence[float], started: Sequence[float]) -> list[float]:
    """How long each was the first that had not started."""
    found, before = [], 0.0
    for at, start in zip(submitted, started, strict=True):
        found.append(max(0.0, start - max(at, before)))
        before = max(before, start)
    return found


def rigid(scenario: Scenario) -> list[Rigid]:
    found = []
    for job in scenario.jobs:
        [role] = job.workload.roles
        [request] = role.devices
        found.append(Rigid(job.workload.submitted, role.min_count, request.count, job.duration))
    return found


def compare(trace: str, first: int) -> list[report.Row]:
    scenario = with_runtimes(loader.open_source(trace), "known")
    if first:
        scenario = overrides.first(scenario, first)
    jobs, nodes = rigid(scenario), scenario.facts.nodes
    outcome = engine.run(scenario, policy_grid.Variant())
    by_key = {record.job.workload.key: record.first_start for record in outcome.records}
    ours = [by_key[job.workload.key] for job in scenario.jobs]
    theirs = starts(jobs, len(nodes), len(nodes[0].devices))
    return [
        _row(trace, "windlass", jobs, [start for start in ours if start is not None]),
        _row(trace, "conservative", jobs, theirs),
    ]


def _row(trace: str, policy: str, jobs: Sequence[Rigid], started: Sequence[float]) -> report.Row:
    submitted = [job.submitted for job in jobs]
    waits = [start - at for at, start in zip(submitted, started, strict=True)]
    return {
        "trace": trace,
        "policy": policy,
        "jobs": len(jobs),
        "mean_wait_s": round(sum(waits) / len(waits), 1),
        "worst_wait_s": round(max(waits), 1),
        "worst_head_wait_s": round(max(head_waits(submitted, started)), 1),
    }


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", nargs="+", metavar="NAME", help="names or paths (default: all)")
    parser.add_argument("--first", type=int, default=1500, metavar="N", help="only so many jobs")


def measure(options: report.Options) -> report.Report:
    traces = options.extra.traces or (QUICK_TRACES if options.quick else TRACES)
    rows = [row for trace in traces for row in compare(trace, options.extra.first)]
    found = report.Report(rows)
    for ours, theirs in zip(rows[::2], rows[1::2], strict=True):
        mine, rival = ours["worst_head_wait_s"], theirs["worst_head_wait_s"]
        if mine > 0:
            found.ratios[f"{ours['trace']}: worst head wait"] = round(rival / mine, 3)
        if mine > BAR * rival:
            found.broken.append(f"{ours['trace']}: a head waited {mine} s, {rival} s there")
    return found


if __name__ == "__main__":
    sys.exit(report.main("conservative", __doc__ or "", measure, configure))
