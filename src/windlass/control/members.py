"""The members of a Run as pods: their keys, what they hold, how their pod looks, how they fare.

Pure. `control.runs` creates these pods, `control.snapshots` counts them.
"""

from __future__ import annotations

import fractions
from collections import Counter
from typing import Literal

from windlass.kinds import duration, hostpods, kubernetes, meta, quantity, reasons, run

DEVICE_PREFIX = "windlass.dev/"
"""Device kinds are extended resources of nodes and pods: `windlass.dev/gpu`."""
VENDOR_KINDS = frozenset({"gpu", "npu"})
"""Kinds that other people's device plug-ins name in their own domains: `nvidia.com/gpu`."""
ANNOTATION_DEVICES = "windlass.dev/devices"
"""Which devices a member's pod was given: its Run says so only while the attempt is current."""
MOST = 1 << 53
"""Larger amounts count as this one: more than any machine has, and sums of it stay exact."""

State = Literal["waiting", "running", "succeeded", "failed"]

_STATES: dict[str, State] = {"Running": "running", "Succeeded": "succeeded", "Failed": "failed"}
_FAILURES = {
    "OOMKilled": reasons.Reason.OUT_OF_MEMORY,
    "NodeLost": reasons.Reason.NODE_LOST,
    "NodeShutdown": reasons.Reason.NODE_LOST,
    "Evicted": reasons.Reason.NODE_LOST,
    "ShimLost": reasons.Reason.AGENT_LOST,
    "ContainerStatusUnknown": reasons.Reason.AGENT_LOST,
    "ImageNotSupported": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
    "CreateContainerConfigError": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
    "CreateContainerError": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
}


def state(pod: kubernetes.Pod) -> State:
    return _STATES.get(pod.status.phase, "waiting")


def is_active(pod: kubernetes.Pod) -> bool:
    """It holds its room: not ended, or not yet seen to have ended."""
    return state(pod) in ("waiting", "running")


def has_started(pod: kubernetes.Pod) -> bool:
    """It runs, or ran and ended well."""
    return state(pod) in ("running", "succeeded")


def owner_uid(pod: kubernetes.Pod) -> str:
    """The uid of the Run that owns the pod, or ""."""
    for owner in pod.metadata.owner_references or ():
        if owner.kind == run.Run.resource.kind and owner.controller:
            return owner.uid
    return ""


def owner_key(pod: kubernetes.Pod) -> tuple[str, str] | None:
    """(namespace, name) of the Run that owns the pod."""
    for owner in pod.metadata.owner_references or ():
        if owner.kind == run.Run.resource.kind and owner.controller:
            return pod.namespace, owner.name
    return None


def key_of(pod: kubernetes.Pod) -> run.MemberKey | None:
    """Which member the pod is, by its owner and its labels; None for other people's pods."""
    labels = pod.metadata.labels or {}
    uid = owner_uid(pod)
    try:
        attempt, index = int(labels[run.LABEL_ATTEMPT]), int(labels[run.LABEL_INDEX])
    except (KeyError, ValueError):
        return None
    role = labels.get(run.LABEL_ROLE, "")
    return run.MemberKey(uid, attempt, role, index) if uid and role else None


def needs(role: run.Role) -> dict[str, int]:
    """What one member holds besides devices: thousandths of cores, bytes."""
    return {
        "cpu": min(MOST, quantity.milli(role.resources.cpu)),
        "memory": min(MOST, quantity.whole(role.resources.memory)),
    }


def device_kind(resource: str) -> str:
    """`gpu` for `windlass.dev/gpu` and `nvidia.com/gpu`; "" for what is no device."""
    domain, _, name = resource.rpartition("/")
    if f"{domain}/" == DEVICE_PREFIX:
        return name
    return name if domain and name in VENDOR_KINDS else ""


def read_amounts(quantities: kubernetes.Quantities | None) -> dict[str, int]:
    """A node's or a container's quantities as integers: bytes of memory, whole pods and devices,
    thousandths of everything else."""
    amounts: dict[str, int] = {}
    for name, value in (quantities or {}).items():
        whole = name in ("memory", "pods") or device_kind(name)
        amounts[name] = min(MOST, quantity.whole(value) if whole else quantity.milli(value))
    return amounts


def pod_amounts(pod: kubernetes.Pod) -> dict[str, int]:
    """What a pod holds by its requests: its containers (those that run beside them, too) together,
    or its largest init container, and what the runtime needs for it."""
    sums: dict[str, int] = {}
    before = pod.spec.init_containers or ()
    beside = [container for container in before if container.restart_policy == "Always"]
    for container in (*pod.spec.containers, *beside):
        for dimension, amount in _requests(container).items():
            sums[dimension] = sums.get(dimension, 0) + amount
    for container in before:
        for dimension, amount in _requests(container).items():
            sums[dimension] = max(sums.get(dimension, 0), amount)
    for dimension, amount in read_amounts(pod.spec.overhead).items():
        sums[dimension] = sums.get(dimension, 0) + amount
    return sums


def device_names(pod: kubernetes.Pod) -> list[str]:
    """The devices that a member's pod was given, as its assignment named them."""
    if not owner_uid(pod):
        return []
    told = (pod.metadata.annotations or {}).get(ANNOTATION_DEVICES, "")
    return [name for name in told.split(",") if name]


def failure(pod: kubernetes.Pod) -> tuple[reasons.Reason, str, int | None]:
    """Why a failed pod failed: the reason, the words, the exit code if there is one."""
    for status in pod.status.container_statuses or ():
        ended = status.state.terminated
        if ended is not None and ended.exit_code != 0:
            reason = _FAILURES.get(ended.reason, reasons.Reason.CODE_FAILED)
            how = f"signal {ended.exit_code - 128}" if ended.exit_code > 128 else "an error"
            words = ended.message or f"ended by {how} with exit code {ended.exit_code}"
            return reason, f"{pod.name}: {words}", ended.exit_code
    reason = _FAILURES.get(pod.status.reason, reasons.Reason.CODE_FAILED)
    return reason, f"{pod.name}: {pod.status.message or pod.status.reason or 'failed'}", None


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
    annotations.pop(ANNOTATION_DEVICES, None)
    if member.devices:
        annotations[ANNOTATION_DEVICES] = ",".join(member.devices)
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


def _requests(container: kubernetes.Container) -> dict[str, int]:
    resources = container.resources or kubernetes.ResourceRequirements()
    return read_amounts(resources.limits) | read_amounts(resources.requests)


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
    return name if "/" in name else DEVICE_PREFIX + name


def _leave_out(what: str, why: str) -> str:
    return f"{what}: {why}; leave it out"
