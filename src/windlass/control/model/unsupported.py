"""Which parts of a Run's spec the engine cannot run, each with a remedy.

`control.convert.run_workloads` keeps such a Run in its queue with this message, the admission of
the embedded server rejects it.
"""

from __future__ import annotations

import fractions

from windlass.control.model import capabilities as engines
from windlass.control.model import pod_setup, ports
from windlass.kinds.types import run


def unsupported(spec: run.RunSpec, engine: engines.Engine | None = None) -> str:
    """What of the spec the engine cannot do, with the remedy; "" when all can be done. Without an
    engine: what none can."""
    for mount in spec.mounts or ():
        if mount.source.startswith("dataset:"):
            return (
                f"spec.mounts: {mount.source}: datasets are not there yet; mount a claim or host:"
            )
    if spec.overrides and spec.overrides.resource_claims:
        return (
            "spec.overrides.resourceClaims: devices of Dynamic Resource Allocation cannot be "
            "claimed yet; ask for whole devices in spec.roles[].devices"
        )
    if engine is not None:
        problem = unsupported_by(engine, spec)
        if problem:
            return problem
    for role in spec.roles:
        for device in role.devices or ():
            if device.share and fractions.Fraction(device.share).numerator != 1:
                return f"spec.roles[].devices[].share {device.share}: write it as 1 over a number"
    return _unsupported_bundle(spec)


def unsupported_by(engine: engines.Engine, spec: run.RunSpec) -> str:
    """What another engine could do."""
    environment = spec.environment or run.Environment()
    for mount in spec.mounts or ():
        if mount.source.startswith("claim:") and not engine.claims:
            return f"spec.mounts: {mount.source}: this engine has no claims; mount a host: folder"
    if environment.image and not engine.images:
        return (
            f"spec.environment.image {environment.image}: this engine runs processes on the "
            "machine's own files, not images; leave it out and name packages in "
            "spec.environment.requirements"
        )
    runtime = spec.overrides.runtime_class_name if spec.overrides else None
    if runtime and not engine.images:
        return (
            f"spec.overrides.runtimeClassName {runtime}: this engine runs processes, not "
            "containers, and has no other runtime; leave it out"
        )
    wanted, (low, high) = ports.layout(spec), engine.ports
    if engine.addresses == "node" and wanted and len(wanted.span) > high - low + 1:
        return (
            f"its replicas need {len(wanted.span)} ports and this engine has {low}-{high}; use "
            "fewer, or widen `ports` in the ConfigMap engine of windlass-system"
        )
    return _unprepared(engine, spec)


def _unprepared(engine: engines.Engine, spec: run.RunSpec) -> str:
    """What must be done inside the pod before its command, and cannot be."""
    several = sum(role.replicas for role in spec.roles) > 1
    if not engine.server:
        if spec.code or pod_setup.builds_environment(spec):
            return "spec.code: pods cannot reach the server of this installation; leave it out"
        if engine.addresses == "pod" and spec.framework != "process" and several:
            return (
                f"spec.framework {spec.framework}: its replicas find each other at the server, and "
                "pods of this installation cannot reach it; name it in `server` of the ConfigMap "
                "engine in windlass-system"
            )
    return ""


def _unsupported_bundle(spec: run.RunSpec) -> str:
    bundle = spec.placement.bundle
    if bundle is None:
        return ""
    if bundle.within == "socket":
        return "spec.placement.bundle.within socket: only numa and pcie are supported; use numa"
    for role in spec.roles:
        kinds = {device.kind for device in role.devices or ()}
        if kinds & set(bundle.devices) and kinds != set(bundle.devices):
            listed = ", ".join(sorted(kinds))
            return f"spec.placement.bundle.devices: name all devices of role {role.name}: {listed}"
    return ""
