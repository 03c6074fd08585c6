"""When a part works: what is missing of each object, and what its pods complain of."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from windlass.install import applying
from windlass.install.names import Object
from windlass.install.render import Part
from windlass.store.kubernetes.client import KubernetesStore

_LOOK = 1.0


async def until_ready(
    store: KubernetesStore, part: Part, seconds: float, say: Callable[[str], None]
) -> str:
    """ "" when all of it works; what is missing if it does not within the time. `say` hears what
    is waited for whenever that changes."""
    deadline = asyncio.get_running_loop().time() + seconds
    said = ""
    while True:
        missing = await missing_of(store, part)
        if not missing:
            return ""
        if missing != said:
            say(missing)
            said = missing
        if asyncio.get_running_loop().time() >= deadline:
            return missing
        await asyncio.sleep(_LOOK)


async def missing_of(store: KubernetesStore, part: Part) -> str:
    """The first thing of a part that does not work; "" when all does."""
    for wanted in part.objects:
        look = _LOOKS.get(wanted["kind"])
        if look is None:
            continue
        found = await applying.read(store, applying.path_of(wanted))
        missing = "it is not there" if found is None else look(found)
        if missing:
            labels = wanted["spec"].get("selector", {}).get("matchLabels")
            told = await _complaint(store, wanted, labels) if labels else ""
            return f"{applying.title(wanted)}: {missing}{told}"
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
    """A Deployment or StatefulSet: as many as wanted, all new, all ready."""
    status: dict[str, Any] = found.get("status") or {}
    wanted = found["spec"].get("replicas", 1)
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


_LOOKS: dict[str, Callable[[Object], str]] = {
    "CustomResourceDefinition": _established,
    "APIService": _available,
    "Deployment": _rolled_out,
    "StatefulSet": _rolled_out,
    "DaemonSet": _on_all_nodes,
}


async def _complaint(store: KubernetesStore, wanted: Object, labels: dict[str, str]) -> str:
    """What keeps the first unhappy pod of a workload from being ready, as its cluster tells it."""
    chosen = ",".join(f"{key}={value}" for key, value in labels.items())
    namespace = wanted["metadata"]["namespace"]
    status, _, body = await store.raw(
        "GET", f"/api/v1/namespaces/{namespace}/pods", query=[("labelSelector", chosen)]
    )
    if status != 200:
        return ""
    import json

    for pod in json.loads(body).get("items") or ():
        told = _trouble(pod)
        if told:
            return f" (pod {pod['metadata']['name']}: {told})"
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
