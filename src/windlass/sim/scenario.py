"""What is simulated: a cluster at one moment, future jobs, and failures.

`inputs` makes scenarios from traces, described clusters and exported states; `overrides` changes
them; `engine` plays them. Times are seconds; a scenario knows the future, the core never does.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator

from windlass.core.model.types import ClusterFacts, Workload

FOREVER = math.inf


class BadInput(ValueError):
    """A user's input cannot be simulated; the message names what, where and what is expected."""


@dataclasses.dataclass(frozen=True, slots=True)
class Job:
    """A workload, and what only the future knows about it."""

    workload: Workload
    duration: float
    """Seconds of work with its least pods; `FOREVER`: it has no end."""
    fails: tuple[float, ...] = ()
    """After so many seconds of work an attempt fails, each once, ascending."""
    longest: float = FOREVER
    """An attempt that runs so many seconds is stopped, and the job ends: `duration.max`."""


@dataclasses.dataclass(frozen=True, slots=True)
class Outage:
    """A node is lost, with everything on it, and comes back empty."""

    node: str
    at: float
    until: float = FOREVER


@dataclasses.dataclass(frozen=True, slots=True)
class Costs:
    """What stopping and starting again takes."""

    grace: float = 30.0
    """Seconds between being evicted and being gone."""
    checkpoint: float | None = 1800.0
    """Seconds between checkpoints of an attempt; 0: nothing is ever lost; None: everything is."""
    restart: float = 60.0
    """Seconds that every start after the first spends on loading its state."""
    backoff: float = 30.0
    """Seconds that a failed workload waits before it may start again."""
    repair: float = 600.0
    """Seconds that a gang with lost pods waits for replacements before it goes back to its
    queue."""


@dataclasses.dataclass(frozen=True, slots=True)
class Scenario:
    name: str
    facts: ClusterFacts
    """Nodes, queues, and the running and waiting workloads at the beginning."""
    jobs: tuple[Job, ...]
    """All work: what will arrive, and what is in `facts` already, by the workload's key."""
    outages: tuple[Outage, ...] = ()
    costs: Costs = Costs()
    start: float = 0.0
    honest: bool = True
    """Whether what workloads say about their duration is true."""

    def __post_init__(self) -> None:
        self._refuse_twice("job", (job.workload.key for job in self.jobs))
        self._refuse_twice("queue", (queue.name for queue in self.facts.queues))

    def _refuse_twice(self, what: str, names: Iterable[str]) -> None:
        seen: set[str] = set()
        for name in names:
            if name in seen:
                raise BadInput(f"{self.name}: {what} {name!r} is there twice; rename one.")
            seen.add(name)

    def present(self) -> frozenset[str]:
        """Workloads that run at the beginning."""
        facts = self.facts
        running = (running.workload.key for running in facts.running)
        return frozenset((*running, *(workload.key for workload in facts.waiting)))


def begin(scenario: Scenario, start: float | None = None) -> Scenario:
    """The scenario from `start` on: jobs that were submitted before wait there already. None: it
    starts with the first submission, or at 0 where jobs were submitted before that."""
    first = min((job.workload.submitted for job in scenario.jobs), default=0.0)
    if start is None:
        start = 0.0 if first < 0 else first
    jobs = sorted(scenario.jobs, key=lambda job: (job.workload.submitted, job.workload.key))
    waiting = tuple(job.workload for job in jobs if job.workload.submitted < start)
    facts = dataclasses.replace(scenario.facts, waiting=waiting, accounted_at=start)
    return dataclasses.replace(scenario, facts=facts, jobs=tuple(jobs), start=start)


def merged(outages: Iterable[Outage]) -> Iterator[Outage]:
    """The same losses, so that no two of one node overlap or touch: it is back after the last."""
    found: dict[str, Outage] = {}
    for outage in sorted(outages, key=lambda each: (each.node, each.at)):
        known = found.get(outage.node)
        if known is not None and outage.at <= known.until:
            until = max(known.until, outage.until)
            found[outage.node] = dataclasses.replace(known, until=until)
            continue
        if known is not None:
            yield known
        found[outage.node] = outage
    yield from found.values()


def devices_of(workload: Workload, kind: str = "gpu") -> float:
    """Devices that the workload's least pods ask for; parts of one count as parts."""
    total = 0.0
    for role in workload.roles:
        for request in role.devices:
            if request.kind == kind:
                part = request.compute / 1000 if request.compute else 1.0
                part = 1 / request.ratio if request.ratio else part
                total += role.min_count * (part if request.form != "whole" else request.count)
    return total


def weight_of(workload: Workload) -> float:
    """How much a workload counts in averages over devices: its GPUs, or its pods without any."""
    return devices_of(workload) or float(max(1, sum(role.min_count for role in workload.roles)))


def with_runtimes(scenario: Scenario, knowledge: str) -> Scenario:
    """What workloads say about their duration: `known` (the truth), `unknown`, or a factor on
    it."""
    if knowledge == "as-given":
        return scenario
    factor = _factor(knowledge)
    estimates = {
        job.workload.key: None
        if factor is None or job.duration == FOREVER
        else job.duration * factor
        for job in scenario.jobs
    }
    jobs = tuple(
        dataclasses.replace(
            job, workload=dataclasses.replace(job.workload, expected=estimates[job.workload.key])
        )
        for job in scenario.jobs
    )
    waiting = tuple(
        dataclasses.replace(workload, expected=estimates.get(workload.key, workload.expected))
        for workload in scenario.facts.waiting
    )
    facts = dataclasses.replace(scenario.facts, waiting=waiting)
    return dataclasses.replace(scenario, jobs=jobs, facts=facts, honest=factor == 1.0)


def _factor(knowledge: str) -> float | None:
    if knowledge == "unknown":
        return None
    try:
        factor = 1.0 if knowledge == "known" else float(knowledge)
    except ValueError:
        factor = math.nan
    if not 0 < factor < math.inf:
        raise BadInput(
            f"Runtimes are {knowledge!r}: say known, unknown, as-given or a factor such as 1.5."
        )
    return factor
