"""Gangs of external pods, as the metadata of the pods defines them.

In this order: Windlass annotations, the labels of coscheduling, the owner where it is clear. For a
gang without a size, `control.scheduler.pod_group_sizes` reads it from the owner. Pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from windlass.kinds.types import core, meta
from windlass.kinds.values import duration

GANG, SIZE, TIMEOUT = "windlass.dev/gang", "windlass.dev/gang-size", "windlass.dev/gang-timeout"
"""Annotations (or labels) of a pod: the name of the gang, its number of pods that must start
together, and how long the gang may be incomplete."""
USUAL_TIMEOUT = 120.0
_GROUP_NAME = "pod-group.scheduling.sigs.k8s.io/name"
_GROUP_LEAST = "pod-group.scheduling.sigs.k8s.io/min-available"
_POD_GROUPS = {
    "scheduling.x-k8s.io/pod-group": "scheduling.x-k8s.io/v1alpha1",
    "pod-group.scheduling.sigs.k8s.io": "scheduling.sigs.k8s.io/v1alpha1",
}
"""Label that names a PodGroup -> the PodGroup's apiVersion."""
_JOBSET, _JOBSET_UID = "jobset.sigs.k8s.io/jobset-name", "jobset.sigs.k8s.io/jobset-uid"
_JOBSET_PART = "jobset.sigs.k8s.io/replicatedjob-name"
_OPERATOR, _MPI_OPERATOR = "training.kubeflow.org/operator-name", "mpi-operator"
_TRAINED = "training.kubeflow.org/job-name"
_SPARK_NAME, _SPARK_ROLE = "sparkoperator.k8s.io/app-name", "spark-role"
_MOST = 100_000


@dataclasses.dataclass(frozen=True, slots=True)
class Source:
    """The object with the size of a gang."""

    api_version: str
    kind: str
    namespace: str
    name: str
    uid: str = ""
    """If the pods have it: another object of the same name is another gang, perhaps of another
    size."""


@dataclasses.dataclass(frozen=True, slots=True)
class Gang:
    key: str
    """Unique over all namespaces; constant for the life of the gang."""
    size: int | None
    """Pods that must start together; None: its source has the size."""
    source: Source | None = None
    timeout: float = USUAL_TIMEOUT
    """Seconds that it may be incomplete."""
    part: str = ""
    """The part of its source that the pod belongs to; parts may start one after the other."""


@dataclasses.dataclass(frozen=True, slots=True)
class Size:
    """The size that a source gives."""

    pods: int
    """Pods that must start together; 1: they need not."""
    parts: Mapping[str, int] | None = None
    """If parts start one after the other, each is a gang of its own: its number of pods."""


def sized(gang: Gang, size_of_source: Size) -> Gang:
    """The gang with the size from its source."""
    if size_of_source.parts is None:
        return dataclasses.replace(gang, size=size_of_source.pods)
    size = size_of_source.parts.get(gang.part, 1)
    return dataclasses.replace(gang, key=f"{gang.key}/{gang.part}", size=size)


def of(pod: core.Pod) -> Gang | None:
    """The gang of a pod, if it has one."""
    labels = pod.metadata.labels or {}
    keys = {**labels, **(pod.metadata.annotations or {})}
    owner = controller(pod)
    timeout = _seconds(keys.get(TIMEOUT, ""))
    size = _count(keys.get(SIZE, ""))
    if size is not None and (keys.get(GANG) or owner is not None):
        name = keys.get(GANG) or (owner.uid if owner else "")
        return Gang(_key(pod, name), size, None, timeout)
    least = _count(labels.get(_GROUP_LEAST, ""))
    if labels.get(_GROUP_NAME) and least is not None:
        return Gang(_key(pod, labels[_GROUP_NAME]), least, None, timeout)
    source = _source(pod, labels, owner)
    if source is None:
        return None
    key = _key(pod, source.uid or f"{source.kind}/{source.name}")
    return Gang(key, None, source, timeout, labels.get(_JOBSET_PART, ""))


def controller(pod: core.Pod) -> meta.OwnerReference | None:
    for owner in pod.metadata.owner_references or ():
        if owner.controller:
            return owner
    return None


def _source(
    pod: core.Pod, labels: dict[str, str], owner: meta.OwnerReference | None
) -> Source | None:
    for label, version in _POD_GROUPS.items():
        if labels.get(label):
            return Source(version, "PodGroup", pod.namespace, labels[label])
    if labels.get(_JOBSET):
        uid = labels.get(_JOBSET_UID, "")
        return Source("jobset.x-k8s.io/v1alpha2", "JobSet", pod.namespace, labels[_JOBSET], uid)
    if labels.get(_SPARK_NAME) and labels.get(_SPARK_ROLE) == "executor":
        version, kind = "sparkoperator.k8s.io/v1beta2", "SparkApplication"
        return Source(version, kind, pod.namespace, labels[_SPARK_NAME])
    if labels.get(_TRAINED) and labels.get(_OPERATOR) == _MPI_OPERATOR:
        # By name: the launcher is the pod of a Job, which has no further reference to its MPIJob.
        return Source("kubeflow.org/v2beta1", "MPIJob", pod.namespace, labels[_TRAINED])
    if owner is None:
        return None
    group = owner.api_version.partition("/")[0]
    if (group == "batch" and owner.kind == "Job") or (
        group == "kubeflow.org" and owner.kind.endswith("Job")
    ):
        return Source(owner.api_version, owner.kind, pod.namespace, owner.name, owner.uid)
    return None


def _key(pod: core.Pod, name: str) -> str:
    return f"{pod.namespace}/{name}"


def _count(text: str) -> int | None:
    return min(int(text), _MOST) if text.isascii() and text.isdecimal() and len(text) < 12 else None


def _seconds(text: str) -> float:
    """A duration in the formats of Kubernetes and Windlass: `90s`, `5m`."""
    try:
        return duration.milliseconds(text) / 1000 if text else USUAL_TIMEOUT
    except ValueError:
        return USUAL_TIMEOUT
