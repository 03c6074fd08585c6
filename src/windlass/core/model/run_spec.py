"""Device requests, node constraints and preferences of a Run's spec, as core types.

The live scheduler (`control.convert.run_workloads`) and the simulator (`sim.inputs.job_spec`) both
read specs here, so that a spec means the same in both.
"""

from __future__ import annotations

import fractions

from windlass.core.model import validation
from windlass.core.model.types import Constraint, DeviceRequest, Preference, Requirement, Toleration
from windlass.kinds.types import run
from windlass.kinds.values import quantity


def device_request(device: run.Device) -> DeviceRequest:
    """What each replica asks for: whole devices, a fraction of one, or a share by size."""
    share = device.share and fractions.Fraction(device.share)
    mebibytes = -(-quantity.whole(device.memory) >> 20) if device.memory else 0
    return DeviceRequest(
        kind=device.kind,
        count=device.count or 1,
        ratio=round(1 / share) if share else 0,
        compute=(device.compute or 0) * 10,
        memory=min(validation.MOST, mebibytes),
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
            tuple(Requirement(k, "In", (v,)) for k, v in sorted(preference.selector.items())),
            preference.weight,
        )
        for preference in nodes.prefer or ()
    )
