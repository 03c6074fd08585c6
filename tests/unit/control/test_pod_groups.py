"""Which pods belong together, and how many: by annotations, labels and owners."""

from __future__ import annotations

import pytest

from windlass.control.convert import pod_groups
from windlass.control.scheduler.cache import pod_group_sizes
from windlass.kinds.types import core, meta
from windlass.kinds.types.pod_groups import (
    Job,
    JobSet,
    MPIJob,
    OldMPIJob,
    PodGroup,
    PyTorchJob,
    SparkApplication,
    TFJob,
)

JOB = meta.OwnerReference(
    api_version="batch/v1", kind="Job", name="j", uid="uid-j", controller=True
)


def pod(labels=None, annotations=None, owner=None) -> core.Pod:
    return core.Pod(
        metadata=meta.ObjectMeta(
            name="p", namespace="team", labels=labels, annotations=annotations,
            owner_references=[owner] if owner else None,
        )
    )  # fmt: skip


def test_annotations_of_ours_say_it_all():
    told = {pod_groups.GANG: "g", pod_groups.SIZE: "8", pod_groups.TIMEOUT: "5m"}
    assert pod_groups.of(pod(annotations=told)) == pod_groups.Gang("team/g", 8, None, 300.0)


def test_a_size_alone_means_the_pods_of_one_owner():
    assert pod_groups.of(pod(annotations={pod_groups.SIZE: "4"}, owner=JOB)) == pod_groups.Gang(
        "team/uid-j", 4
    )
    assert pod_groups.of(pod(annotations={pod_groups.SIZE: "4"})) is None


@pytest.mark.parametrize("size", ["", "x", "-1", "1.5", "9" * 20])
def test_what_is_no_number_makes_no_gang(size):
    assert pod_groups.of(pod(annotations={pod_groups.GANG: "g", pod_groups.SIZE: size})) is None


def test_labels_of_coscheduling_are_understood():
    prefix = "pod-group.scheduling.sigs.k8s.io"
    labels = {f"{prefix}/name": "g", f"{prefix}/min-available": "3"}
    assert pod_groups.of(pod(labels)) == pod_groups.Gang("team/g", 3)
    found = pod_groups.of(pod({"scheduling.x-k8s.io/pod-group": "g"}))
    assert found.size is None
    assert (found.source.kind, found.source.name) == ("PodGroup", "g")


def test_a_job_is_asked_how_many_pods_it_has():
    found = pod_groups.of(pod(owner=JOB))
    assert found.source == pod_groups.Source("batch/v1", "Job", "team", "j", "uid-j")
    assert found.key == "team/uid-j"  # not the Job of that name that was there before


def test_pods_of_a_job_that_do_not_need_each_other_can_say_so():
    assert pod_groups.of(pod(annotations={pod_groups.SIZE: "1"}, owner=JOB)).size == 1


def test_executors_of_spark_are_one_thing_and_their_driver_is_none_of_it():
    labels = {"sparkoperator.k8s.io/app-name": "pi", "spark-role": "executor"}
    driver = meta.OwnerReference(
        api_version="v1", kind="Pod", name="pi-driver", uid="uid-d", controller=True
    )
    found = pod_groups.of(pod(labels, owner=driver))
    version = "sparkoperator.k8s.io/v1beta2"
    assert found.source == pod_groups.Source(version, "SparkApplication", "team", "pi")
    assert pod_groups.of(pod({**labels, "spark-role": "driver"})) is None


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (Job, {"parallelism": 4, "completions": 4}, 4),
        (Job, {"parallelism": 2, "completions": 8}, 1),
        (Job, {}, 1),
        (Job, {"parallelism": 3}, 3),
        (SparkApplication, {"executor": {"instances": 6}}, 6),
        (
            SparkApplication,
            {"executor": {"instances": 6}, "dynamicAllocation": {"enabled": True}},
            1,
        ),
        (PodGroup, {"minMember": 5}, 5),
        (
            JobSet,
            {
                "replicatedJobs": [
                    {"replicas": 2, "template": {"spec": {"parallelism": 3}}},
                    {"template": {"spec": {}}},
                ]
            },
            7,
        ),
        (
            PyTorchJob,
            {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}},
            8,
        ),
        (
            MPIJob,
            {"mpiReplicaSpecs": {"Launcher": {"replicas": 1}, "Worker": {"replicas": 4}}},
            5,
        ),
        (
            SparkApplication,
            {
                "executor": {"instances": 6},
                "sparkConf": {"spark.dynamicAllocation.enabled": "true"},
            },
            1,
        ),
        (
            TFJob,
            {
                "tfReplicaSpecs": {"Worker": {"replicas": 7}},
                "runPolicy": {"schedulingPolicy": {"minAvailable": 2}},
            },
            2,
        ),
    ],
)
def test_owners_say_how_many(kind, spec, size):
    assert pod_group_sizes.size_of(kind(spec=spec)) == size


def test_a_launcher_and_its_workers_are_one_gang_whatever_owns_them():
    """The MPI operator makes the launcher by a Job; the training operator made both itself."""
    operator = {
        "training.kubeflow.org/operator-name": "mpi-operator",
        "training.kubeflow.org/job-name": "m",
    }
    version = "kubeflow.org/v2beta1"
    mpi = meta.OwnerReference(
        api_version=version, kind="MPIJob", name="m", uid="uid-m", controller=True
    )
    assert pod_groups.of(pod(operator, owner=JOB)) == pod_groups.of(pod(operator, owner=mpi))
    assert pod_groups.of(pod(operator, owner=JOB)).source == pod_groups.Source(
        version, "MPIJob", "team", "m"
    )
    old = meta.OwnerReference(
        api_version="kubeflow.org/v1", kind="MPIJob", name="m", uid="uid-m", controller=True
    )
    assert pod_groups.of(pod(owner=old)).source.api_version == OldMPIJob.resource.api_version


PARTS = [
    {"name": "data", "template": {"spec": {}}},
    {"name": "node", "replicas": 2, "template": {"spec": {"parallelism": 4}}},
]
AFTER = [PARTS[0], PARTS[1] | {"dependsOn": [{"name": "data", "status": "Complete"}]}]


@pytest.mark.parametrize(
    ("spec", "sizes"),
    [
        ({"replicatedJobs": PARTS}, {"data": 9, "node": 9}),
        ({"replicatedJobs": AFTER}, {"data": 1, "node": 8}),
        (
            {"replicatedJobs": PARTS, "startupPolicy": {"startupPolicyOrder": "InOrder"}},
            {"data": 1, "node": 8},
        ),
    ],
    ids=["at once", "after another", "in order"],
)
def test_jobs_that_start_one_after_the_other_do_not_wait_for_each_other(spec, sizes):
    told = pod_group_sizes.size_from(JobSet(spec=spec))
    found = {}
    for part in sizes:
        told_of = {"jobset-name": "s", "jobset-uid": "uid-s", "replicatedjob-name": part}
        labels = {f"jobset.sigs.k8s.io/{key}": value for key, value in told_of.items()}
        found[part] = pod_groups.sized(pod_groups.of(pod(labels)), told)
    assert {part: gang.size for part, gang in found.items()} == sizes
    assert (found["data"].key == found["node"].key) == (sizes["data"] == sizes["node"])
