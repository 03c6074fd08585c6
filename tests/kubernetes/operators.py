"""Owners of other people's pods as their projects define them, and pods as their operators make
them: names, labels, annotations and owners as JobSet 0.8, Kubeflow's training operator 1.8 and MPI
operator 0.6, the Spark operator 2 with Spark 3.5 and KServe 0.15 write them. The operators
themselves are played; the Jobs and Deployments that some make are real, and so are the controllers
that make their pods."""

from __future__ import annotations

import dataclasses
from typing import Any

from tests.harness import waiting
from tests.kubernetes.external_pods import PATIENCE, Json, World, pod

KUBEFLOW, JOBSET, SPARK = "kubeflow.org", "jobset.x-k8s.io", "sparkoperator.k8s.io"
COSCHEDULING, COSCHEDULED = "scheduling.x-k8s.io", "scheduling.sigs.k8s.io"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
JOBS = "/apis/batch/v1/namespaces/default/jobs"
_ANY = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
_APPROVED = {"api-approved.kubernetes.io": "https://github.com/kubeflow/spark-operator/pull/1298"}
"""Groups under k8s.io must name their approval, as the Spark operator's definition does."""
_TRAINING = "training.kubeflow.org"


def definition(group: str, version: str, kind: str) -> Json:
    """A definition of a kind with its real names; what is in its spec is left to its builders."""
    plural = f"{kind.lower()}s"
    schema = {"type": "object", "properties": {"spec": _ANY, "status": _ANY}}
    served = {
        "name": version, "served": True, "storage": True, "schema": {"openAPIV3Schema": schema},
        "subresources": {"status": {}},
    }  # fmt: skip
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}", "annotations": _APPROVED},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [served],
        },
    }


DEFINITIONS = [
    definition(JOBSET, "v1alpha2", "JobSet"),
    definition(KUBEFLOW, "v1", "PyTorchJob"),
    definition(KUBEFLOW, "v1", "TFJob"),
    definition(KUBEFLOW, "v2beta1", "MPIJob"),
    definition(SPARK, "v1beta2", "SparkApplication"),
    definition(COSCHEDULING, "v1alpha1", "PodGroup"),
]


@dataclasses.dataclass
class Made:
    """What an operator made for one owner: some pods at once, the rest when it comes to it."""

    world: World
    path: str
    name: str
    chosen: str
    """A selector of its pods that are one gang."""
    first: list[Json]
    last: Json
    """One pod, or the Job that makes it."""

    def begin(self) -> None:
        self._make(*self.first)

    def finish(self) -> None:
        self._make(self.last)

    def again(self, name: str) -> None:
        """A pod that is gone is made once more, by its controller."""
        lost = [each for each in (*self.first, self.last) if each["metadata"]["name"] == name]
        self._make(*lost)

    def pods(self) -> list[Json]:
        listed: list[Json] = self.world.rest.get(self.world.pods(), labelSelector=self.chosen).json[
            "items"
        ]
        return [each for each in listed if not each["metadata"].get("deletionTimestamp")]

    def are(self, count: int) -> list[str]:
        """Waits for so many pods; their names."""
        waiting.until(lambda: len(self.pods()) == count, f"{self.name} has {count} pods", PATIENCE)
        return [each["metadata"]["name"] for each in self.pods()]

    def bound(self) -> list[str]:
        return [each["spec"]["nodeName"] for each in self.pods() if each["spec"].get("nodeName")]

    def remove(self) -> None:
        for path in filter(None, (self.path, *(f"{JOBS}/{job}" for job in self._jobs()))):
            self.world.rest.delete(path, {"propagationPolicy": "Background"})

    def _jobs(self) -> list[str]:
        made = (*self.first, self.last)
        return [each["metadata"]["name"] for each in made if each["kind"] == "Job"]

    def _make(self, *objects: Json) -> None:
        for each in objects:
            self.world.make(JOBS if each["kind"] == "Job" else self.world.pods(), each)


def owned(world: World, version: str, kind: str, name: str, spec: Json) -> tuple[str, Json]:
    """Makes the owner; its path and how its pods refer to it."""
    path = f"/apis/{version}/namespaces/default/{kind.lower()}s"
    body = {"apiVersion": version, "kind": kind, "metadata": {"name": name}, "spec": spec}
    world.make(path, body)
    return f"{path}/{name}", reference(world, f"{path}/{name}", body)


def reference(world: World, path: str, body: Json) -> Json:
    found = world.rest.get(path).json["metadata"]
    return {
        "apiVersion": body["apiVersion"], "kind": body["kind"], "name": found["name"],
        "uid": found["uid"], "controller": True, "blockOwnerDeletion": True,
    }  # fmt: skip


def template(notes: Json, labels: Json | None = None, **spec: Any) -> Json:
    """What users write into an owner for the pods of a role."""
    made = pod("", requests={"cpu": "1"}, terminationGracePeriodSeconds=0, **spec)
    return {"metadata": {"labels": labels or {}, "annotations": notes}, "spec": made["spec"]}


def _from(template: Json, name: str, labels: Json, owner: Json, **more: Json) -> Json:
    metadata = template["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "labels": {**metadata["labels"], **labels},
            "annotations": {**metadata["annotations"], **more.get("annotations", {})},
            "ownerReferences": [owner],
        },
        "spec": template["spec"],
    }


# --- Kubeflow's training operator -----------------------------------------------------------------


def trained(
    world: World, kind: str, field: str, roles: dict[str, int], notes: Json, **labels: str
) -> Made:
    """A PyTorchJob or TFJob: a pod for each replica of each role, owned by the job itself."""
    name = kind.lower()[:3]
    wanted = template(notes, labels)
    replicas = {
        role: {"replicas": count, "restartPolicy": "OnFailure", "template": wanted}
        for role, count in roles.items()
    }
    spec = {"runPolicy": {"cleanPodPolicy": "None"}, field: replicas}
    path, owner = owned(world, f"{KUBEFLOW}/v1", kind, name, spec)
    pods = []
    for role, count in roles.items():
        for index in range(count):
            told = {
                f"{_TRAINING}/job-name": name,
                f"{_TRAINING}/operator-name": f"{kind.lower()}-controller",
                f"{_TRAINING}/replica-type": role.lower(),
                f"{_TRAINING}/replica-index": str(index),
            }
            if role in ("Master", "Chief"):
                told[f"{_TRAINING}/job-role"] = "master"
            pods.append(_from(wanted, f"{name}-{role.lower()}-{index}", told, owner))
    return Made(world, path, name, f"{_TRAINING}/job-name={name}", pods[:-1], pods[-1])


def pytorch(world: World, notes: Json, **labels: str) -> Made:
    roles = {"Master": 1, "Worker": 2}
    return trained(world, "PyTorchJob", "pytorchReplicaSpecs", roles, notes, **labels)


def tensorflow(world: World, notes: Json, **labels: str) -> Made:
    roles = {"Chief": 1, "PS": 1, "Worker": 1}
    return trained(world, "TFJob", "tfReplicaSpecs", roles, notes, **labels)


# --- Kubeflow's MPI operator ----------------------------------------------------------------------


def mpi(world: World, notes: Json, policy: str = "AtStartup", **labels: str) -> Made:
    """Workers are pods of the MPIJob; the launcher is the pod of a Job that the MPIJob owns."""
    name, wanted = "mpi", template(notes, labels)
    replicas = {
        "Launcher": {"replicas": 1, "restartPolicy": "OnFailure", "template": wanted},
        "Worker": {"replicas": 2, "restartPolicy": "Never", "template": wanted},
    }
    spec = {
        "slotsPerWorker": 1, "launcherCreationPolicy": policy, "mpiReplicaSpecs": replicas,
        "runPolicy": {"cleanPodPolicy": "Running"}, "mpiImplementation": "OpenMPI",
    }  # fmt: skip
    path, owner = owned(world, f"{KUBEFLOW}/v2beta1", "MPIJob", name, spec)
    usual = {f"{_TRAINING}/operator-name": "mpi-operator", f"{_TRAINING}/job-name": name}
    workers = [
        _from(
            wanted, f"{name}-worker-{index}",
            {
                **usual, f"{_TRAINING}/job-role": "worker",
                f"{_TRAINING}/replica-index": str(index),
            },
            owner,
        )
        for index in range(2)
    ]  # fmt: skip
    told = {**labels, **usual, f"{_TRAINING}/job-role": "launcher"}
    launcher = {
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": {
            "name": f"{name}-launcher", "labels": {"app": name}, "ownerReferences": [owner],
        },
        "spec": {
            "template": {
                "metadata": {"labels": told, "annotations": notes},
                "spec": {**wanted["spec"], "restartPolicy": "OnFailure"},
            },
        },
    }  # fmt: skip
    return Made(world, path, name, f"{_TRAINING}/job-name={name}", workers, launcher)


# --- JobSet ---------------------------------------------------------------------------------------


def jobset(world: World, notes: Json, order: Json | None = None, **labels: str) -> Made:
    """Jobs with the JobSet's labels; their pods belong to the Jobs."""
    name, prefix = "set", "jobset.sigs.k8s.io"
    sizes = {"driver": 1, "workers": 2}
    wanted = template(notes, labels, restartPolicy="Never")
    job = {"backoffLimit": 6, "completionMode": "Indexed", "template": wanted}
    specs = {
        role: {**job, "parallelism": size, "completions": size} for role, size in sizes.items()
    }
    replicated = [
        {"name": role, "replicas": 1, "template": {"spec": spec}} for role, spec in specs.items()
    ]
    path, owner = owned(
        world, f"{JOBSET}/v1alpha2", "JobSet", name, {"replicatedJobs": replicated, **(order or {})}
    )
    jobs = []
    for number, (role, spec) in enumerate(specs.items()):
        told = {
            f"{prefix}/jobset-name": name, f"{prefix}/jobset-uid": owner["uid"],
            f"{prefix}/replicatedjob-name": role, f"{prefix}/replicatedjob-replicas": "1",
            f"{prefix}/job-index": "0", f"{prefix}/job-global-index": str(number),
            f"{prefix}/global-replicas": "2", f"{prefix}/restart-attempt": "0",
        }  # fmt: skip
        metadata = {
            "labels": {**wanted["metadata"]["labels"], **told}, "annotations": {**notes, **told},
        }  # fmt: skip
        jobs.append({
            "apiVersion": "batch/v1", "kind": "Job",
            "metadata": {"name": f"{name}-{role}-0", "ownerReferences": [owner], **metadata},
            "spec": {**spec, "template": {"metadata": metadata, "spec": wanted["spec"]}},
        })  # fmt: skip
    return Made(world, path, name, f"{prefix}/jobset-name={name}", jobs[:1], jobs[1])


# --- Spark ----------------------------------------------------------------------------------------


def spark(world: World, notes: Json, dynamic: Json | None = None, **labels: str) -> Made:
    """Executors belong to the driver's pod, which belongs to the application."""
    name, identity = "pi", "spark-77204fbefcd04f1bb63816fcf9528cf1"
    spec = {
        "type": "Python", "mode": "cluster", "sparkVersion": "3.5.3",
        "driver": {"cores": 1}, "executor": {"cores": 1, "instances": 3}, **(dynamic or {}),
    }  # fmt: skip
    path, owner = owned(world, f"{SPARK}/v1beta2", "SparkApplication", name, spec)
    usual = {
        "spark-app-name": name, "spark-app-selector": identity, "spark-version": "3.5.3",
        f"{SPARK}/app-name": name, f"{SPARK}/launched-by-spark-operator": "true",
        f"{SPARK}/submission-id": "37383231-e716-404b-96dd-74b58edcd84f",
    }  # fmt: skip
    wanted = template(notes, labels, restartPolicy="Never")
    driver = _from(wanted, f"{name}-driver", {**usual, "spark-role": "driver"}, owner)
    world.submit(driver)
    starter = reference(world, f"{world.pods()}/{name}-driver", driver)
    executors = [
        _from(
            wanted, f"{name}-exec-{number}",
            {
                **usual, "spark-role": "executor", "spark-exec-id": str(number),
                "spark-exec-resourceprofile-id": "0",
            },
            starter,
        )
        for number in (1, 2, 3)
    ]  # fmt: skip
    chosen = f"{SPARK}/app-name={name},spark-role=executor"
    return Made(world, path, name, chosen, executors[:-1], executors[-1])


# --- KServe ---------------------------------------------------------------------------------------


def kserve(world: World, replicas: int, **labels: str) -> Json:
    """The Deployment that KServe makes of an InferenceService without Knative (its mode
    RawDeployment); `labels` are those of the InferenceService, which its pods get, too."""
    name = "bert-predictor"
    usual = {
        "app": f"isvc.{name}", "component": "predictor",
        "serving.kserve.io/inferenceservice": "bert",
    }  # fmt: skip
    wanted = template({"serving.kserve.io/deploymentMode": "RawDeployment"}, {**usual, **labels})
    wanted["spec"]["containers"][0]["name"] = "kserve-container"
    rolling = {"maxSurge": "25%", "maxUnavailable": "25%"}
    made = {
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas, "selector": {"matchLabels": {"app": f"isvc.{name}"}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": rolling}, "template": wanted,
        },
    }  # fmt: skip
    world.make(DEPLOYMENTS, made)
    return made


# --- coscheduling, of Kubernetes' scheduler plug-ins --------------------------------------------


def labelled(world: World, notes: Json, **labels: str) -> Made:
    """Pods that say it all by labels, as in its first years."""
    group = {f"pod-group.{COSCHEDULED}/name": "old", f"pod-group.{COSCHEDULED}/min-available": "3"}
    wanted = template(notes, {**labels, **group})
    pods = [_bare(wanted, f"old-{number}") for number in range(3)]
    return Made(world, "", "old", f"pod-group.{COSCHEDULED}/name=old", pods[:-1], pods[-1])


def grouped(world: World, notes: Json, **labels: str) -> Made:
    """Pods that name their PodGroup."""
    spec = {"minMember": 3, "scheduleTimeoutSeconds": 10}
    path, _ = owned(world, f"{COSCHEDULING}/v1alpha1", "PodGroup", "new", spec)
    wanted = template(notes, {**labels, f"{COSCHEDULING}/pod-group": "new"})
    pods = [_bare(wanted, f"new-{number}") for number in range(3)]
    return Made(world, path, "new", f"{COSCHEDULING}/pod-group=new", pods[:-1], pods[-1])


def _bare(template: Json, name: str) -> Json:
    metadata = {**template["metadata"], "name": name}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": template["spec"]}


OWNERS = [pytorch, tensorflow, mpi, jobset, spark, labelled, grouped]
