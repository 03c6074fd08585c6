"""Kinds of other projects that define the size of a group of pods, with the fields that are read.

Windlass neither serves nor writes them; a cluster may have some of them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import msgspec

from windlass.kinds.types.meta import Object
from windlass.kinds.types.resource import Resource

Spec = dict[str, Any]


class Sized(Object):
    """An object that creates a known number of pods."""

    spec: Spec = msgspec.field(default_factory=dict)
    """Desired state, as its project defines it."""


class Job(Sized):
    """Pods that run to completion."""

    resource: ClassVar = Resource("batch", "v1", "Job", "jobs", namespaced=True)


class JobSet(Sized):
    """A set of Jobs that form one workload."""

    resource: ClassVar = Resource(
        "jobset.x-k8s.io", "v1alpha2", "JobSet", "jobsets", namespaced=True
    )


class PodGroup(Sized):
    """A gang of the coscheduling plugin."""

    resource: ClassVar = Resource(
        "scheduling.x-k8s.io", "v1alpha1", "PodGroup", "podgroups", namespaced=True
    )


class OldPodGroup(Sized):
    """A gang of the coscheduling plugin, in its first API version."""

    resource: ClassVar = Resource(
        "scheduling.sigs.k8s.io", "v1alpha1", "PodGroup", "podgroups", namespaced=True
    )


class PyTorchJob(Sized):
    """Of Kubeflow's training operator."""

    resource: ClassVar = Resource("kubeflow.org", "v1", "PyTorchJob", "pytorchjobs", True)


class TFJob(Sized):
    """Of Kubeflow's training operator."""

    resource: ClassVar = Resource("kubeflow.org", "v1", "TFJob", "tfjobs", True)


class XGBoostJob(Sized):
    """Of Kubeflow's training operator."""

    resource: ClassVar = Resource("kubeflow.org", "v1", "XGBoostJob", "xgboostjobs", True)


class PaddleJob(Sized):
    """Of Kubeflow's training operator."""

    resource: ClassVar = Resource("kubeflow.org", "v1", "PaddleJob", "paddlejobs", True)


class JAXJob(Sized):
    """Of Kubeflow's training operator."""

    resource: ClassVar = Resource("kubeflow.org", "v1", "JAXJob", "jaxjobs", True)


class MPIJob(Sized):
    """Of Kubeflow's MPI operator."""

    resource: ClassVar = Resource("kubeflow.org", "v2beta1", "MPIJob", "mpijobs", True)


class OldMPIJob(Sized):
    """Of Kubeflow's training operator, before the MPI operator was separate."""

    resource: ClassVar = Resource("kubeflow.org", "v1", "MPIJob", "mpijobs", True)


class SparkApplication(Sized):
    """Of the Spark operator."""

    resource: ClassVar = Resource(
        "sparkoperator.k8s.io", "v1beta2", "SparkApplication", "sparkapplications", True
    )


ALL: tuple[type[Sized], ...] = (
    Job, JobSet, PodGroup, OldPodGroup, PyTorchJob, TFJob, XGBoostJob, PaddleJob, JAXJob, MPIJob,
    OldMPIJob, SparkApplication,
)  # fmt: skip
