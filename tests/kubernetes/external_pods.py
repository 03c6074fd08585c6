"""Builders and a small world for tests about other people's pods on a real control plane."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.harness import waiting
from tests.harness.control_plane import ControlPlane
from tests.harness.processes import Process, free_ports

PATIENCE = 60
Json = dict[str, Any]


def node(
    name: str, labels: Json | None = None, taints: list[Json] | None = None, **has: str
) -> Json:
    amounts = {"cpu": "8", "memory": "32Gi", "pods": "110", **has}
    amounts = {key.replace("__", "/"): value for key, value in amounts.items()}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "spec": {"taints": taints or []},
        "status": {
            "capacity": amounts,
            "allocatable": amounts,
            "conditions": [{"type": "Ready", "status": "True"}],
        },
    }


def pod(name: str, metadata: Json | None = None, requests: Json | None = None, **spec: Any) -> Json:
    container = {"name": "main", "image": "none", "resources": {"requests": requests or {}}}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, **(metadata or {})},
        "spec": {
            "schedulerName": "windlass",
            "automountServiceAccountToken": False,
            "containers": [container],
            **spec,
        },
    }


def gang(name: str, size: int, made: int | None = None, **more: Any) -> list[Json]:
    """Pods of one gang; `made` of them if not all."""
    told = {"windlass.dev/gang": name, "windlass.dev/gang-size": str(size)}
    told |= more.pop("annotations", {})
    metadata = {"annotations": told}
    return [pod(f"{name}-{i}", metadata, **more) for i in range(size if made is None else made)]


class World:
    """A control plane of the test's own with our scheduler as a process."""

    def __init__(self, plane: ControlPlane, folder: Path) -> None:
        self.plane, self.rest, self.folder = plane, plane.rest, folder
        self.scheduler: Process | None = None

    def start(self) -> Process:
        (port,) = free_ports(1)
        command = [
            sys.executable, "-m", "windlass.control", "scheduler",
            "--kubeconfig", self.plane.kubeconfig, "--listen", f"127.0.0.1:{port}",
        ]  # fmt: skip
        self.scheduler = Process("scheduler", command, self.folder / f"scheduler-{port}.log")
        self.scheduler.start()
        return self.scheduler

    def make(self, path: str, *objects: Json) -> None:
        for each in objects:
            answer = self.rest.post(path, each)
            assert answer.status == 201, answer.summary

    def add_nodes(self, *nodes: Json) -> None:
        self.make("/api/v1/nodes", *nodes)

    def add_queue(self, name: str = "default", **spec: Any) -> None:
        queue = {
            "apiVersion": "windlass.dev/v1alpha1", "kind": "Queue", "metadata": {"name": name},
            "spec": spec,
        }  # fmt: skip
        self.make("/apis/windlass.dev/v1alpha1/queues", queue)

    def submit(self, *pods: Json, namespace: str = "default") -> None:
        self.make(self.pods(namespace), *pods)

    def pods(self, namespace: str = "default") -> str:
        return f"/api/v1/namespaces/{namespace}/pods"

    def get(self, name: str, namespace: str = "default") -> Json:
        found: Json = self.rest.get(f"{self.pods(namespace)}/{name}").json
        return found

    def node_of(self, name: str, namespace: str = "default") -> str:
        return str(self.get(name, namespace).get("spec", {}).get("nodeName", ""))

    def is_bound(self, name: str, namespace: str = "default") -> str:
        """Waits for it; the node."""
        return str(
            waiting.until(lambda: self.node_of(name, namespace), f"{name} is bound", PATIENCE)
        )

    def why(self, name: str, reason: str, namespace: str = "default", words: str = "") -> str:
        """Waits until the pod shows a reason, in these words if given; the message."""

        def told() -> str:
            for each in self.get(name, namespace).get("status", {}).get("conditions") or ():
                if each["type"] == "PodScheduled" and each["status"] == "False":
                    assert each["reason"] == "Unschedulable", each
                    if each["message"].startswith(f"{reason}:") and words in each["message"]:
                        return str(each["message"])
            return ""

        try:
            return str(waiting.until(told, f"{name} is told {reason} {words}", PATIENCE))
        except AssertionError as never:
            raise AssertionError(f"{never}: {self.get(name, namespace)['status']}") from None

    def remove(self, name: str, namespace: str = "default") -> None:
        self.rest.delete(f"{self.pods(namespace)}/{name}", {"gracePeriodSeconds": 0})

    def clear(self) -> None:
        """Without pods, nodes and queues again."""
        for path in ("/api/v1/namespaces/default/pods",):
            for each in self.rest.get(path).json["items"]:
                self.remove(each["metadata"]["name"])
        for path in ("/api/v1/nodes", "/apis/windlass.dev/v1alpha1/queues"):
            for each in self.rest.get(path).json["items"]:
                self.rest.delete(f"{path}/{each['metadata']['name']}")


@pytest.fixture
def world(running: World) -> Iterator[World]:
    """For one test of a file that has a `running` world."""
    running.add_queue()
    yield running
    running.clear()
