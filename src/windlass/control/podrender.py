"""How the pod of a member looks, and what of a Run no engine here can do.

Pure. `control.runmachine` asks for the pods that are missing; `control.snapshots` holds Runs that
cannot be done.
"""

from __future__ import annotations

import fractions
from collections import Counter

from windlass.control import members
from windlass.kinds import duration, hostpods, kubernetes, meta, run


def unsupported(spec: run.RunSpec) -> str:
    """What of the spec no engine here can do yet, with the remedy; "" when all can be done."""
    if spec.framework != "process":
        return _leave_out(f"spec.framework {spec.framework}", "only process is supported")
    for name, value in (("code", spec.code), ("mounts", spec.mounts)):
        if value:
            return _leave_out(f"spec.{name}", "it is not supported yet")
    if spec.restart != "run":
        return _leave_out(f"spec.restart {spec.restart}", "only run is supported")
    environment = spec.environment
    if environment and (environment.python or environment.requirements or environment.setup):
        return _leave_out("spec.environment", "only its image is supported yet")
    for role in spec.roles:
        if role.resources.shm != "auto":
            return _leave_out("spec.roles[].resources.shm", "only auto is supported yet")
        for device in role.devices or ():
            if device.share and fractions.Fraction(device.share).numerator != 1:
                return f"spec.roles[].devices[].share {device.share}: write it as 1 over a number"
    return _unsupported_bundle(spec)


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


def pod_of(owner: run.Run, role: run.Role, index: int, member: run.Member) -> kubernetes.Pod:
    """The pod of one member, bound to its node."""
    attempt = owner.status.attempt
    overrides = owner.spec.overrides or run.Overrides()
    labels = {
        **(overrides.labels or {}),
        run.LABEL_RUN: owner.name,
        run.LABEL_ATTEMPT: str(attempt),
        run.LABEL_ROLE: role.name,
        run.LABEL_INDEX: str(index),
    }
    annotations = {
        **(overrides.annotations or {}),
        hostpods.STOP_SIGNAL: owner.spec.checkpoint.signal,
    }
    annotations.pop(members.ANNOTATION_DEVICES, None)
    if member.devices:
        annotations[members.ANNOTATION_DEVICES] = ",".join(member.devices)
    return kubernetes.Pod(
        metadata=meta.ObjectMeta(
            name=run.pod_name(owner.name, owner.uid, attempt, role.name, index),
            namespace=owner.namespace,
            labels=labels,
            annotations=annotations,
            owner_references=[_owner(owner)],
        ),
        spec=kubernetes.PodSpec(
            node_name=member.node,
            restart_policy="Never",
            termination_grace_period_seconds=duration.seconds(owner.spec.checkpoint.grace),
            enable_service_links=False,
            automount_service_account_token=False,
            containers=[_container(owner, role, index, member)],
        ),
    )


def _container(
    owner: run.Run, role: run.Role, index: int, member: run.Member
) -> kubernetes.Container:
    environment = owner.spec.environment
    devices = Counter(_resource_of(name) for name in member.devices or ())
    amounts: kubernetes.Quantities = {
        "cpu": role.resources.cpu,
        "memory": role.resources.memory,
        **{resource: str(count) for resource, count in devices.items()},
    }
    return kubernetes.Container(
        name=role.name,
        image=(environment.image if environment else None) or hostpods.HOST_IMAGE,
        command=[literal(word) for word in role.command],
        env=_environment(owner, role, index),
        env_from=[_env_from(source) for source in role.env_from or ()] or None,
        ports=[
            kubernetes.ContainerPort(name=port.name, container_port=port.port)
            for port in role.ports or ()
        ]
        or None,
        resources=kubernetes.ResourceRequirements(requests=amounts, limits=amounts),
    )


def _environment(owner: run.Run, role: run.Role, index: int) -> list[kubernetes.EnvVar]:
    ours = {
        "WINDLASS_RUN": owner.name,
        "WINDLASS_ATTEMPT": str(owner.status.attempt),
        "WINDLASS_ROLE": role.name,
        "WINDLASS_INDEX": str(index),
    }
    if owner.spec.checkpoint.path:
        ours["WINDLASS_CHECKPOINT"] = owner.spec.checkpoint.path
    return [
        kubernetes.EnvVar(name=name, value=literal(value))
        for name, value in ((role.env or {}) | ours).items()
    ]


def literal(text: str) -> str:
    """Text that whoever runs the pod gives back as it is: in pods, `$(NAME)` would be filled in."""
    return text.replace("$", "$$")


def _env_from(source: run.EnvFrom) -> kubernetes.EnvFrom:
    return kubernetes.EnvFrom(
        prefix=source.prefix,
        secret_ref=kubernetes.EnvFromRef(name=source.secret) if source.secret else None,
        config_map_ref=kubernetes.EnvFromRef(name=source.config) if source.config else None,
    )


def _owner(owner: run.Run) -> meta.OwnerReference:
    return meta.OwnerReference(
        api_version=owner.resource.api_version,
        kind=owner.resource.kind,
        name=owner.name,
        uid=owner.uid,
        controller=True,
        block_owner_deletion=True,
    )


def _resource_of(device: str) -> str:
    """What a pod asks for to get a device: `gpu/0` -> `windlass.dev/gpu`; a device of somebody
    else's plug-in has its resource in its name: `nvidia.com/gpu/0`."""
    name = device.partition(":")[0].rpartition("/")[0]
    return name if "/" in name else members.DEVICE_PREFIX + name


def _leave_out(what: str, why: str) -> str:
    return f"{what}: {why}; leave it out"
