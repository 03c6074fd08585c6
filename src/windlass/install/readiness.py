"""Waits until a part of the installation works, and reports what is missing."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from windlass.install import apply
from windlass.install.manifests.render import Part
from windlass.install.names import Object
from windlass.store.kubernetes.client import KubernetesStore

_POLL_SECONDS = 1.0
EFFECTS = {
    "scheduler": "waiting runs do not start; running ones continue",
    "controllers": "runs neither start nor end; running pods continue",
    "server": "why, ps, uploads of code and archived logs do not answer, and namespaces are not "
    "deleted; runs continue",
    "agents": "logs of deleted pods and utilization are missing",
}
"""By part: what does not work while it does not."""


async def until_ready(
    store: KubernetesStore, part: Part, seconds: float, say: Callable[[str], None]
) -> str:
    """An empty string when the part works; what is missing if it does not in time. `say` is called
    whenever that changes."""
    deadline = asyncio.get_running_loop().time() + seconds
    shown = ""
    while True:
        missing = await missing_of(store, part)
        if not missing:
            return ""
        if missing != shown:
            say(missing)
            shown = missing
        if asyncio.get_running_loop().time() >= deadline:
            return missing
        await asyncio.sleep(_POLL_SECONDS)


async def missing_of(store: KubernetesStore, part: Part) -> str:
    """The first problem of a part; "" if there is none."""
    for wanted in part.objects:
        poll = _POLLS.get(wanted["kind"])
        if poll is None:
            continue
        found = await apply.read(store, apply.path_of(wanted))
        missing = "it is not there" if found is None else poll(found)
        if missing:
            labels = wanted["spec"].get("selector", {}).get("matchLabels")
            detail = await _pod_problem(store, wanted, labels) if labels else ""
            return f"{apply.title(wanted)}: {missing}{detail}"
    return ""


def _established(found: Object) -> str:
    return _condition(found, "Established", "it is not served yet")


def _available(found: Object) -> str:
    return _condition(found, "Available", "the API server does not reach it")


def _condition(found: Object, name: str, otherwise: str) -> str:
    for each in found.get("status", {}).get("conditions") or ():
        if each["type"] == name:
            return "" if each["status"] == "True" else each.get("message") or otherwise
    return otherwise


def _rolled_out(found: Object) -> str:
    """What is missing of a Deployment or StatefulSet: all pods must be updated and ready."""
    status: dict[str, Any] = found.get("status") or {}
    wanted = found["spec"].get("replicas", 1)
    if not wanted:
        return "it is scaled to 0"
    if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
        return "the change was not seen yet"
    fresh, ready = status.get("updatedReplicas", 0), status.get("readyReplicas", 0)
    if fresh < wanted or ready < wanted or status.get("replicas", 0) > wanted:
        return f"{min(fresh, ready)} of {wanted} ready"
    return ""


def _on_all_nodes(found: Object) -> str:
    status: dict[str, Any] = found.get("status") or {}
    wanted = status.get("desiredNumberScheduled", 0)
    if status.get("observedGeneration", 0) < found["metadata"]["generation"]:
        return "the change was not seen yet"
    ready = min(status.get("updatedNumberScheduled", 0), status.get("numberReady", 0))
    return "" if ready >= wanted else f"{ready} of {wanted} ready"


_POLLS: dict[str, Callable[[Object], str]] = {
    "CustomResourceDefinition": _established,
    "APIService": _available,
    "Deployment": _rolled_out,
    "StatefulSet": _rolled_out,
    "DaemonSet": _on_all_nodes,
}


async def _pod_problem(store: KubernetesStore, wanted: Object, labels: dict[str, str]) -> str:
    """Why the first pod of a workload that is not ready is not, from its status."""
    chosen = ",".join(f"{key}={value}" for key, value in labels.items())
    namespace = wanted["metadata"]["namespace"]
    status, _, body = await store.raw(
        "GET", f"/api/v1/namespaces/{namespace}/pods", query=[("labelSelector", chosen)]
    )
    if status != 200:
        return ""
    import json

    for pod in json.loads(body).get("items") or ():
        problem = _trouble(pod)
        if problem:
            return f" (pod {pod['metadata']['name']}: {problem})"
    return ""


def _trouble(pod: Object) -> str:
    status = pod.get("status") or {}
    for each in (*status.get("initContainerStatuses", ()), *status.get("containerStatuses", ())):
        waiting = each.get("state", {}).get("waiting") or {}
        ended = each.get("state", {}).get("terminated") or each.get("lastState", {}).get(
            "terminated"
        )
        if ended and ended.get("exitCode"):
            message = " ".join((ended.get("message") or ended.get("reason") or "").split())
            return f"it ended with {ended['exitCode']}: {message[-300:]}"
        if waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']}: {waiting.get('message', '')}"[:300]
    for condition in status.get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message", "no node takes it"))[:300]
    return ""
