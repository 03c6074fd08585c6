"""Which pods belong together, and how many: by annotations, labels and owners."""

from __future__ import annotations

import pytest

from windlass.control import gangs, gangsizes
from windlass.kinds import gangkinds, kubernetes, meta

JOB = meta.OwnerReference(
    api_version="batch/v1", kind="Job", name="j", uid="uid-j", controller=True
)


def pod(labels=None, annotations=None, owner=None) -> kubernetes.Pod:
    return kubernetes.Pod(
        metadata=meta.ObjectMeta(
            name="p", namespace="team", labels=labels, annotations=annotations,
            owner_references=[owner] if owner else None,
        )
    )  # fmt: skip


def test_annotations_of_ours_say_it_all():
    told = {gangs.GANG: "g", gangs.SIZE: "8", gangs.TIMEOUT: "5m"}
    assert gangs.of(pod(annotations=told)) == gangs.Gang("team/g", 8, None, 300.0)


def test_a_size_alone_means_the_pods_of_one_owner():
    assert gangs.of(pod(annotations={gangs.SIZE: "4"}, owner=JOB)) == gangs.Gang("team/uid-j", 4)
    assert gangs.of(pod(annotations={gangs.SIZE: "4"})) is None


@pytest.mark.parametrize("size", ["", "x", "-1", "1.5", "9" * 20])
def test_what_is_no_number_makes_no_gang(size):
    assert gangs.of(pod(annotations={gangs.GANG: "g", gangs.SIZE: size})) is None


def test_labels_of_coscheduling_are_understood():
    prefix = "pod-group.scheduling.sigs.k8s.io"
    labels = {f"{prefix}/name": "g", f"{prefix}/min-available": "3"}
    assert gangs.of(pod(labels)) == gangs.Gang("team/g", 3)
    found = gangs.of(pod({"scheduling.x-k8s.io/pod-group": "g"}))
    assert found.size is None
    assert (found.source.kind, found.source.name) == ("PodGroup", "g")


def test_a_job_is_asked_how_many_pods_it_has():
    found = gangs.of(pod(owner=JOB))
    assert found.source == gangs.Source("batch/v1", "Job", "team", "j", "uid-j")
    assert found.key == "team/uid-j"  # not the Job of that name that was there before


def test_pods_of_a_job_that_do_not_need_each_other_can_say_so():
    assert gangs.of(pod(annotations={gangs.SIZE: "1"}, owner=JOB)).size == 1


def test_executors_of_spark_are_one_thing_and_their_driver_is_none_of_it():
    labels = {"sparkoperator.k8s.io/app-name": "pi", "spark-role": "executor"}
    driver = meta.OwnerReference(
        api_version="v1", kind="Pod", name="pi-driver", uid="uid-d", controller=True
    )
    found = gangs.of(pod(labels, owner=driver))
    version = "sparkoperator.k8s.io/v1beta2"
    assert found.source == gangs.Source(version, "SparkApplication", "team", "pi")
    assert gangs.of(pod({**labels, "spark-role": "driver"})) is None


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (gangkinds.Job, {"parallelism": 4, "completions": 4}, 4),
        (gangkinds.Job, {"parallelism": 2, "completions": 8}, 1),
        (gangkinds.Job, {}, 1),
        (gangkinds.Job, {"parallelism": 3}, 3),
        (gangkinds.SparkApplication, {"executor": {"instances": 6}}, 6),
        (
            gangkinds.SparkApplication,
            {"executor": {"instances": 6}, "dynamicAllocation": {"enabled": True}},
            1,
        ),
        (gangkinds.PodGroup, {"minMember": 5}, 5),
        (
            gangkinds.JobSet,
            {
                "replicatedJobs": [
                    {"replicas": 2, "template": {"spec": {"parallelism": 3}}},
                    {"template": {"spec": {}}},
                ]
            },
            7,
        ),
        (
            gangkinds.PyTorchJob,
            {"pytorchReplicaSpecs": {"Master": {"replicas": 1}, "Worker": {"replicas": 7}}},
            8,
        ),
        (
            gangkinds.TFJob,
            {
                "tfReplicaSpecs": {"Worker": {"replicas": 7}},
                "runPolicy": {"schedulingPolicy": {"minAvailable": 2}},
            },
            2,
        ),
    ],
)
def test_owners_say_how_many(kind, spec, size):
    assert gangsizes.size_of(kind(spec=spec)) == size
