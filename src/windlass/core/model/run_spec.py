"""Device requests, node constraints and preferences of a Run's spec, as the facts they mean.

The live scheduler (`control.snapshots`) and the simulator (`sim.jobspec`) both read specs here, so
that the same words mean the same in both.
"""

from __future__ import annotations

import fractions

from windlass.core import facts_check
from windlass.core.facts import Constraint, DeviceRequest, Preference, Requirement, Toleration
from windlass.kinds import quantity, run


def device_request(device: run.Device) -> DeviceRequest:
    """What each replica asks for: whole devices, a fraction of one, or a share by size."""
    share = device.share and fractions.Fraction(device.share)
    mebibytes = -(-quantity.whole(device.memory) >> 20) if device.memory else 0
    return DeviceRequest(
        kind=device.kind,
        count=device.count or 1,
        ratio=round(1 / share) if share else 0,
        compute=(device.compute or 0) * 10,
        memory=min(facts_check.MOST, mebibytes),
        models=tuple(device.models or ()),
        isolation=device.isolation or "none",
    )


def constraint(nodes: run.NodeChoice, tolerated: tuple[Toleration, ...] = ()) -> Constraint:
    """Which nodes the user accepts; `tolerated`: taints that the platform tolerates for all."""
    return Constraint(
        selector=tuple(sorted((nodes.selector or {}).items())),
        tolerations=(
            *tolerated,
            *(Toleration(t.key, t.operator, t.value, t.effect) for t in nodes.tolerations or ()),
        ),
        capabilities=frozenset(nodes.capabilities or ()),
    )


def preferences(nodes: run.NodeChoice) -> tuple[Preference, ...]:
    """Where replicas would rather run."""
    return tuple(
        Preference(
            tuple(Requirement(k, "In", (v,)) for k, v in sorted(liked.selector.items())),
            liked.weight,
        )
        for liked in nodes.prefer or ()
    )
