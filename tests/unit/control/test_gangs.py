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


def test_of_jobs_only_indexed_ones_are_one_thing():
    assert gangs.of(pod(owner=JOB)) is None
    found = gangs.of(pod({"batch.kubernetes.io/job-completion-index": "0"}, owner=JOB))
    assert found.source == gangs.Source("batch/v1", "Job", "team", "j")


@pytest.mark.parametrize(
    ("kind", "spec", "size"),
    [
        (gangkinds.Job, {"parallelism": 4, "completions": 4}, 4),
        (gangkinds.Job, {"parallelism": 2, "completions": 8}, 1),
        (gangkinds.Job, {}, 1),
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
