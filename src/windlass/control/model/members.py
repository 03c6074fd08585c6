"""The members of a Run as pods: their keys, what they hold, how they fare.

Pure. `control.runs.pod_template` says how their pods look, `control.runs.controller` creates them,
`control.convert.run_workloads` counts them.
"""

from __future__ import annotations

import functools
import re
from typing import Literal

import msgspec

from windlass.kinds import reasons
from windlass.kinds.annotations import GRANTED, SHARED_MEMORY_FULL
from windlass.kinds.types import core, run
from windlass.kinds.values import quantity

DEVICE_PREFIX = "windlass.dev/"
"""Device kinds are extended resources of nodes and pods: `windlass.dev/gpu`."""
SCHEDULER = "windlass"
"""The schedulerName of other people's pods that are ours to place."""
VENDOR_KINDS = frozenset({"gpu", "npu"})
"""Kinds that other people's device plug-ins name in their own domains: `nvidia.com/gpu`."""
ANNOTATION_DEVICES = "windlass.dev/devices"
"""The devices of a member's pod: its Run has them only while the attempt is current."""
ANNOTATION_NOMINATED = "windlass.dev/nominated-devices"
"""Which devices are being freed for a pod on the node that its status nominates."""
ANNOTATION_RESTART = "windlass.dev/restart"
"""The restart within the attempt that the pod was made for; absent: it is the first of its key."""
OWN_NODES = "windlass.dev/only"
"""The taint of nodes that are for Runs alone: every Run tolerates it."""
MOST = 1 << 53
"""Larger amounts count as this one: more than any machine has, and sums of it stay exact."""

State = Literal["waiting", "running", "succeeded", "failed"]

_STATES: dict[str, State] = {"Running": "running", "Succeeded": "succeeded", "Failed": "failed"}
_ENDINGS = {
    "OOMKilled": reasons.Reason.OUT_OF_MEMORY,
    "OutOfSharedMemory": reasons.Reason.OUT_OF_SHARED_MEMORY,
    "OutOfDisk": reasons.Reason.OUT_OF_DISK,
    "ShimLost": reasons.Reason.AGENT_LOST,
    "ContainerStatusUnknown": reasons.Reason.AGENT_LOST,
}
"""What nodes say of a container. The embedded agent lets no job say it of itself."""
_FAILURES = {
    **_ENDINGS,
    "NodeLost": reasons.Reason.NODE_LOST,
    "NodeShutdown": reasons.Reason.NODE_LOST,
    "Evicted": reasons.Reason.NODE_LOST,
    "ImageNotSupported": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
    "PodNotSupported": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
    "CreateContainerConfigError": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
    "CreateContainerError": reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED,
    "MountFailed": reasons.Reason.MOUNT_FAILED,
    "UnexpectedAdmissionError": reasons.Reason.NODE_REFUSED,
    "TopologyAffinityError": reasons.Reason.NODE_REFUSED,
    "NodeAffinity": reasons.Reason.NODE_REFUSED,
    "NodePorts": reasons.Reason.NODE_REFUSED,
    "PortTaken": reasons.Reason.NODE_REFUSED,
    "RightsChanged": reasons.Reason.NODE_REFUSED,
}
"""Reasons that nodes give for a pod. Of a container only `_ENDINGS` counts, because the message may
be the job's own, and some of these reasons lead to attempts that cost nothing."""
_PREPARE_SAYS = frozenset(
    {reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED, reasons.Reason.CODE_FAILED,
     reasons.Reason.TIMEOUT, reasons.Reason.UNSUPPORTED}
)  # fmt: skip
"""Reasons that our init container may give. The user's `setup` runs in it, so none that leads to an
attempt for free."""
_BUS_ERROR = 128 + 7
SHARED_MEMORY = "shm"
"""Name of the volume that is a member's /dev/shm."""
_OVER_ITS_DISK = re.compile(
    r"ephemeral.* exceeds the (total )?limit|exceeded its local ephemeral|"
    r"EmptyDir volume .* exceeds"
)
"""Kubelet's messages for a pod that it evicts for its own disk usage. It also evicts pods because
the node is short of something ("The node was low on resource"), which is not the pod's doing."""
DISK = "ephemeral-storage"
"""Kubernetes' name for the disk of a node that pods use for files that go with them."""
_REFUSED = "OutOf"
"""The prefix of a kubelet's reason for rejecting a pod that does not fit: OutOfcpu, OutOfpods."""


def state(pod: core.Pod) -> State:
    return _STATES.get(pod.status.phase, "waiting")


def is_active(pod: core.Pod) -> bool:
    """It holds its capacity: not ended, or not yet observed to have ended."""
    return state(pod) in ("waiting", "running")


def has_started(pod: core.Pod) -> bool:
    """It runs, or ran and ended well."""
    return state(pod) in ("running", "succeeded")


def blocked(pod: core.Pod) -> str:
    """What keeps a pod from starting, as its node reports it: a missing Secret, an image."""
    status = pod.status
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        waits = container.state.waiting if container.state else None
        if waits is not None and waits.message:
            return f"{waits.reason}: {waits.message}" if waits.reason else waits.message
    return ""


def ended_at(pod: core.Pod) -> str | None:
    """When the last of its containers ended, of a pod that has."""
    if is_active(pod):
        return None
    ends = [
        container.state.terminated.finished_at
        for container in pod.status.container_statuses or ()
        if container.state and container.state.terminated
    ]
    return max((end for end in ends if end), default=None)


def preparing_since(pod: core.Pod) -> str | None:
    """Since when its environment and code are being made, if they are."""
    for container in _preparing(pod):
        if container.state and container.state.running:
            return container.state.running.started_at
    return None


def _preparing(pod: core.Pod) -> list[core.ContainerStatus]:
    """The status of each init container, without sidecars: those run beside the command, and how
    they end says nothing about it."""
    beside = {c.name for c in pod.spec.init_containers or () if c.restart_policy == "Always"}
    return [each for each in pod.status.init_container_statuses or () if each.name not in beside]


def owner_uid(pod: core.Pod) -> str:
    """The uid of the Run that owns the pod, or ""."""
    for owner in pod.metadata.owner_references or ():
        if owner.kind == run.Run.resource.kind and owner.controller:
            return owner.uid
    return ""


def owner_key(pod: core.Pod) -> tuple[str, str] | None:
    """(namespace, name) of the Run that owns the pod."""
    for owner in pod.metadata.owner_references or ():
        if owner.kind == run.Run.resource.kind and owner.controller:
            return pod.namespace, owner.name
    return None


def key_of(pod: core.Pod) -> run.MemberKey | None:
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
    disk = role.resources.disk
    return {
        "cpu": min(MOST, quantity.milli(role.resources.cpu)),
        "memory": min(MOST, quantity.whole(role.resources.memory)),
        **({} if disk is None else {DISK: min(MOST, quantity.whole(disk))}),
    }


def resizes_live(spec: run.RunSpec, role: run.Role) -> bool:
    """Whether members of a role may come and go while the others run."""
    return not spec.placement.gang or role.resize == "live"


@functools.lru_cache(maxsize=1024)
def device_kind(resource: str) -> str:
    """`gpu` for `windlass.dev/gpu` and `nvidia.com/gpu`; "" for what is no device."""
    domain, _, name = resource.rpartition("/")
    if f"{domain}/" == DEVICE_PREFIX:
        return name
    return name if domain and name in VENDOR_KINDS else ""


def read_amounts(quantities: core.Quantities | None) -> dict[str, int]:
    """A node's or a container's quantities as integers: bytes, whole pods and devices, thousandths
    of everything else."""
    return {name: _amount(name, value) for name, value in (quantities or {}).items()}


@functools.lru_cache(maxsize=8192)
def _amount(resource: str, value: str | float) -> int:
    """Thousands of pods and nodes write the same few."""
    whole = is_whole(resource) or device_kind(resource)
    return min(MOST, quantity.whole(value) if whole else quantity.milli(value))


def is_whole(resource: str) -> bool:
    """Counted in bytes or pods, not in thousandths."""
    return resource in ("memory", "pods", "ephemeral-storage") or resource.startswith("hugepages-")


def pod_amounts(pod: core.Pod) -> dict[str, int]:
    """What a pod holds by its requests: its containers (those that run beside them, too) together,
    or the most that is needed while it is initialized, or its own pod-level requests; and
    what the runtime needs for it."""
    sums: dict[str, int] = {}
    for container in pod.spec.containers:
        _add(sums, _requests(container.resources))
    if pod.spec.init_containers:
        beside: dict[str, int] = {}
        most: dict[str, int] = {}
        for container in pod.spec.init_containers:
            asked = _requests(container.resources)
            if container.restart_policy == "Always":
                _add(beside, asked)
                asked = beside
            else:
                asked = _add(dict(beside), asked)
            most |= {name: max(most.get(name, 0), amount) for name, amount in asked.items()}
        _add(sums, beside)
        sums |= {name: max(sums.get(name, 0), amount) for name, amount in most.items()}
    if pod.spec.resources is not None:
        whole = read_amounts(pod.spec.resources.requests)
        sums |= {name: n for name, n in whole.items() if _is_shared_by_containers(name)}
    return _add(sums, read_amounts(pod.spec.overhead))


def _add(sums: dict[str, int], more: dict[str, int]) -> dict[str, int]:
    for name, amount in more.items():
        sums[name] = sums.get(name, 0) + amount
    return sums


def _is_shared_by_containers(resource: str) -> bool:
    """Whether a pod may ask for it as a whole."""
    return resource in ("cpu", "memory") or resource.startswith("hugepages-")


def device_names(pod: core.Pod) -> list[str]:
    """The devices that a pod was given by us, as its assignment or its binding named them."""
    if not owner_uid(pod) and pod.spec.scheduler_name != SCHEDULER:
        return []
    text = (pod.metadata.annotations or {}).get(ANNOTATION_DEVICES, "")
    return [name for name in text.split(",") if name]


def placed_on(pod: core.Pod, node: str, devices: list[str]) -> core.Pod:
    """The pod as it is once it is bound."""
    spec = msgspec.structs.replace(pod.spec, node_name=node)
    annotations = {**(pod.metadata.annotations or {})}
    if devices:
        annotations[ANNOTATION_DEVICES] = ",".join(devices)
    metadata = msgspec.structs.replace(pod.metadata, annotations=annotations)
    return msgspec.structs.replace(pod, spec=spec, metadata=metadata)


def granted_devices(pod: core.Pod) -> list[str]:
    """The devices that its node gave a pod, as the node names them: `nvidia.com/gpu/GPU-8f1e`."""
    text = (pod.metadata.annotations or {}).get(GRANTED)
    if text is None:
        return []
    try:
        granted = msgspec.json.decode(text, type=dict[str, list[str]])
    except msgspec.MsgspecError:
        return []
    return [f"{resource}/{name}" for resource in sorted(granted) for name in granted[resource]]


def restart_of(pod: core.Pod) -> int:
    """The restart within the attempt that the pod was made for; 0: none."""
    text = (pod.metadata.annotations or {}).get(ANNOTATION_RESTART, "0")
    return int(text) if text.isdecimal() else 0


def failure(pod: core.Pod) -> tuple[reasons.Reason, str, int | None]:
    """Why a failed pod failed: the reason, the message, the exit code if there is one."""
    if pod.status.reason == "Evicted" and _OVER_ITS_DISK.search(pod.status.message):
        more = "ask for more with --disk"
        return reasons.Reason.OUT_OF_DISK, f"{pod.name}: {pod.status.message.strip()}; {more}", None
    before = _preparing(pod)
    for status in (*before, *(pod.status.container_statuses or ())):
        ended = status.state.terminated
        if ended is not None and ended.exit_code != 0:
            how = f"signal {ended.exit_code - 128}" if ended.exit_code > 128 else "an error"
            message = ended.message or f"ended by {how} with exit code {ended.exit_code}"
            reason = _ENDINGS.get(ended.reason, reasons.Reason.CODE_FAILED)
            if reason is reasons.Reason.CODE_FAILED and status in before:
                reason, message = _not_prepared(ended.reason, message)
            elif reason is reasons.Reason.CODE_FAILED and (text := _shared_memory(pod, ended)):
                reason, message = reasons.Reason.OUT_OF_SHARED_MEMORY, text
            return reason, f"{pod.name}: {message}", ended.exit_code
    reason = _FAILURES.get(pod.status.reason, reasons.Reason.CODE_FAILED)
    if reason is reasons.Reason.CODE_FAILED and pod.status.reason.startswith(_REFUSED):
        reason = reasons.Reason.NODE_REFUSED
    return reason, f"{pod.name}: {pod.status.message or pod.status.reason or 'failed'}", None


def _shared_memory(pod: core.Pod, ended: core.ContainerStateTerminated) -> str:
    """The message for a pod that filled a /dev/shm of its own; "": it did not. Kubelet
    only knows how it ended, and what filled it is often gone with its process, so a bus error is
    enough; another failure is one of shared memory if the agent saw it full."""
    size = shared_memory_of(pod)
    full = SHARED_MEMORY_FULL in (pod.metadata.annotations or {})
    if not size or not (full or ended.exit_code == _BUS_ERROR):
        return ""
    has, more = (f"{-(-amount // (1 << 20))}Mi" for amount in (size, 2 * size))
    if full:
        return f"its shared memory of {has} (/dev/shm) was full; ask for at least {more}"
    return (
        f"it ended with a bus error, as when shared memory runs full: it has {has} (/dev/shm); ask "
        f"for at least {more}"
    )


def shared_memory_of(pod: core.Pod) -> int:
    """Bytes of the /dev/shm that a Run's pod has for itself; 0: it has none."""
    for volume in pod.spec.volumes or ():
        folder = volume.get("emptyDir") or {}
        if volume.get("name") == SHARED_MEMORY and folder.get("sizeLimit"):
            return quantity.whole(str(folder["sizeLimit"]))
    return 0


def not_built(pod: core.Pod) -> tuple[reasons.Reason, str]:
    """Why a pod that only prepares failed: its own message, if it left one."""
    status = pod.status
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        ended = container.state.terminated if container.state else None
        if ended is None or ended.exit_code == 0:
            continue
        if ended.reason in _ENDINGS:
            return _ENDINGS[ended.reason], f"{pod.name}: {ended.reason} while it was built"
        if ended.message:
            return _not_prepared(ended.reason, ended.message)
        return reasons.Reason.AGENT_LOST, f"{pod.name} was killed, exit code {ended.exit_code}"
    reason, message, _ = failure(pod)
    if pod.status.reason == "DeadlineExceeded":
        reason = reasons.Reason.TIMEOUT
    return reason, message


def lost_processes(pod: core.Pod) -> bool:
    """Whether the kernel killed processes of the pod for memory though it ended with success: some
    of its work may be missing."""
    ends = [
        status.state.terminated
        for status in pod.status.container_statuses or ()
        if status.state.terminated is not None
    ]
    return any(end.exit_code == 0 and end.reason == "OOMKilled" for end in ends)


def _not_prepared(reason: str, text: str) -> tuple[reasons.Reason, str]:
    """What our own init container left: `{"reason", "message"}`, which the embedded agent has taken
    apart already and others leave in the message; or else whatever it printed."""
    if reason in _PREPARE_SAYS:
        return reasons.Reason(reason), text
    try:
        typed = msgspec.json.decode(text, type=_Typed)
    except msgspec.MsgspecError:
        return reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED, text
    known = typed.reason in _PREPARE_SAYS
    usual = reasons.Reason.IMAGE_OR_ENVIRONMENT_FAILED
    return reasons.Reason(typed.reason) if known else usual, typed.message


class _Typed(msgspec.Struct):
    reason: str
    message: str


def _requests(resources: core.ResourceRequirements | None) -> dict[str, int]:
    if resources is None:
        return {}
    return read_amounts(resources.limits) | read_amounts(resources.requests)
