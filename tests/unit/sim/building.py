"""Small scenarios for tests of the simulator."""

from __future__ import annotations

import dataclasses
from typing import Any

from windlass.core.model.types import ClusterFacts, DeviceRequest, Queue, Role, Workload
from windlass.sim import compare, engine
from windlass.sim.inputs import builders
from windlass.sim.job_progress import Record
from windlass.sim.metrics.metrics import Outcome
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import FOREVER, Costs, Job, Outage, Scenario

COSTS = Costs(grace=30, checkpoint=200, restart=60, backoff=30, repair=600)


def job(
    key: str,
    at: float = 0,
    lasts: float = 100,
    gpus: int = 8,
    members: int = 1,
    most: int = 0,
    fails: tuple[float, ...] = (),
    **workload: Any,
) -> Job:
    requests = (DeviceRequest("gpu", gpus),) if gpus else ()
    role = Role("worker", members, max(most, members), {"cpu": 1000}, requests)
    said = None if lasts == FOREVER else lasts
    workload = {"queue": "default", "expected": said, **workload}
    return Job(Workload(key, roles=(role,), submitted=at, **workload), lasts, fails)


def scenario(
    *jobs: Job,
    nodes: int = 1,
    rack: int = 0,
    queues: tuple[Queue, ...] = (Queue("default"),),
    outages: tuple[Outage, ...] = (),
    costs: Costs = COSTS,
) -> Scenario:
    machines = builders.cluster(nodes, builders.NodeForm(), rack)
    facts = ClusterFacts(machines, queues, levels=builders.LEVELS if rack else ())
    first = min((each.workload.submitted for each in jobs), default=0.0)
    return Scenario("test", facts, jobs, outages, costs, first)


def play(played: Scenario, variant: Variant = Variant(), **costs: Any) -> dict[str, Record]:  # noqa: B008
    """What happened to each job; every decision is checked."""
    played = dataclasses.replace(played, costs=dataclasses.replace(played.costs, **costs))
    return {record.job.workload.key: record for record in outcome(played, variant).records}


def outcome(played: Scenario, variant: Variant = Variant()) -> Outcome:  # noqa: B008
    return engine.run(played, variant, checker=compare.checker_for(played, variant, again=1))
