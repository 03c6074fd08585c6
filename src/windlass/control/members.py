"""The members of a Run as pods: their keys, what they hold, how their pod looks, how they fare.

Pure. `control.runs` creates these pods, `control.snapshots` counts them.
"""

from __future__ import annotations

from typing import Literal

from windlass.kinds import duration, hostpods, kubernetes, meta, quantity, reasons, run

DEVICE_PREFIX = "windlass.dev/"
"""Device kinds are extended resources of nodes and pods: `windlass.dev/gpu`."""

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
    """What one member holds: thousandths of cores, bytes, thousandths of devices."""
    amounts = {
        "cpu": quantity.milli(role.resources.cpu),
        "memory": quantity.whole(role.resources.memory),
    }
    for device in role.devices or ():
        amounts[device.kind] = amounts.get(device.kind, 0) + 1000 * (device.count or 1)
    return amounts


def read_amounts(quantities: kubernetes.Quantities | None) -> dict[str, int]:
    """The same from a node's or a container's quantities; what we do not count is left out."""
    amounts: dict[str, int] = {}
    for name, value in (quantities or {}).items():
        if name == "memory":
            amounts["memory"] = quantity.whole(value)
        elif name == "cpu":
            amounts["cpu"] = quantity.milli(value)
        elif name.startswith(DEVICE_PREFIX):
            amounts[name.removeprefix(DEVICE_PREFIX)] = quantity.milli(value)
    return amounts


def pod_amounts(pod: kubernetes.Pod) -> dict[str, int]:
    """What a pod holds by its requests: its containers together, or its largest init container."""
    sums: dict[str, int] = {}
    for container in pod.spec.containers:
        for dimension, amount in _requests(container).items():
            sums[dimension] = sums.get(dimension, 0) + amount
    for container in pod.spec.init_containers or ():
        for dimension, amount in _requests(container).items():
            sums[dimension] = max(sums.get(dimension, 0), amount)
    return sums


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
    placement = spec.placement
    if placement.bundle or (placement.topology and placement.topology.mode == "required"):
        return _leave_out("spec.placement.bundle and topology", "they cannot be required yet")
    for role in spec.roles:
        if role.resources.shm != "auto":
            return _leave_out("spec.roles[].resources.shm", "only auto is supported yet")
        if any(d.share or d.memory or d.compute or d.models for d in role.devices or ()):
            return _leave_out("spec.roles[].devices", "only kind and count are supported yet")
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
            containers=[_container(owner, role, index)],
        ),
    )


def _container(owner: run.Run, role: run.Role, index: int) -> kubernetes.Container:
    environment = owner.spec.environment
    devices = {
        f"{DEVICE_PREFIX}{kind}": str(amount // 1000)
        for kind, amount in needs(role).items()
        if kind not in ("cpu", "memory")
    }
    amounts: kubernetes.Quantities = {
        "cpu": role.resources.cpu,
        "memory": role.resources.memory,
        **devices,
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


def _leave_out(what: str, why: str) -> str:
    return f"{what}: {why}; leave it out"
