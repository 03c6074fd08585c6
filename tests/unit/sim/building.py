"""Small scenarios for tests of the simulator."""

from __future__ import annotations

import dataclasses
from typing import Any

from windlass.core.facts import DeviceRequest, Facts, Queue, Role, Unit
from windlass.sim import compare, engine, shaping
from windlass.sim.live import Record
from windlass.sim.measures import Outcome
from windlass.sim.scenario import FOREVER, Costs, Job, Outage, Scenario
from windlass.sim.variants import Variant

COSTS = Costs(grace=30, checkpoint=200, restart=60, backoff=30, repair=600)


def job(
    key: str,
    at: float = 0,
    lasts: float = 100,
    gpus: int = 8,
    members: int = 1,
    most: int = 0,
    fails: tuple[float, ...] = (),
    **unit: Any,
) -> Job:
    requests = (DeviceRequest("gpu", gpus),) if gpus else ()
    role = Role("worker", members, max(most, members), {"cpu": 1000}, requests)
    said = None if lasts == FOREVER else lasts
    unit = {"queue": "default", "expected": said, **unit}
    return Job(Unit(key, roles=(role,), submitted=at, **unit), lasts, fails)


def scenario(
    *jobs: Job,
    nodes: int = 1,
    rack: int = 0,
    queues: tuple[Queue, ...] = (Queue("default"),),
    outages: tuple[Outage, ...] = (),
    costs: Costs = COSTS,
) -> Scenario:
    machines = shaping.cluster(nodes, shaping.NodeForm(), rack)
    facts = Facts(machines, queues, levels=shaping.LEVELS if rack else ())
    first = min((each.unit.submitted for each in jobs), default=0.0)
    return Scenario("test", facts, jobs, outages, costs, first)


def play(played: Scenario, variant: Variant = Variant(), **costs: Any) -> dict[str, Record]:  # noqa: B008
    """What happened to each job; every decision is checked."""
    played = dataclasses.replace(played, costs=dataclasses.replace(played.costs, **costs))
    return {record.job.unit.key: record for record in outcome(played, variant).records}


def outcome(played: Scenario, variant: Variant = Variant()) -> Outcome:  # noqa: B008
    return engine.run(played, variant, checker=compare.checker_for(played, variant, again=1))
