"""Tries the image on the cluster before anything uses it: a pod that imports Windlass and ends.

So an image that cannot be pulled, is of another architecture or holds something else is found while
the installed components still run. Only what the kubelet says counts: the registry may be reachable
from the nodes and not from here.
"""

from __future__ import annotations

import asyncio
from typing import Any

from windlass.install import apply, names
from windlass.install.manifests import workloads
from windlass.install.names import Object
from windlass.install.options import Options
from windlass.store import errors
from windlass.store.kubernetes.client import KubernetesStore

NAME = "windlass-image-check"
_POD = f"/api/v1/namespaces/{names.SYSTEM}/pods/{NAME}"
_LOOK = 0.5
_FINAL = (
    "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "ImageInspectError",
    "CreateContainerError", "CreateContainerConfigError", "RunContainerError",
)  # fmt: skip
"""Reasons of a waiting container that time alone does not change. ErrImagePull is not among them:
the kubelet tries once more before it says ImagePullBackOff."""


async def problem(store: KubernetesStore, options: Options, seconds: float) -> str | None:
    """Why the image cannot be used; "" if it can; None if no node tried it in time."""
    deadline = asyncio.get_running_loop().time() + seconds
    try:
        found = await _created(store, options, deadline)
        while found is not None:
            verdict = _verdict(found)
            if verdict is not None:
                return verdict
            if asyncio.get_running_loop().time() >= deadline:
                return None
            await asyncio.sleep(_LOOK)
            found = await apply.read(store, _POD)
        return None
    finally:
        await apply.remove(store, _POD)


async def _created(store: KubernetesStore, options: Options, deadline: float) -> Object | None:
    await apply.remove(store, _POD)  # of a check that was interrupted
    while True:
        try:
            return await apply.create(store, _pod(options), _POD)
        except (errors.Forbidden, errors.AlreadyExists):
            # The namespace is new and its default account not there yet; or the old pod still is.
            if asyncio.get_running_loop().time() >= deadline:
                return None
            await asyncio.sleep(_LOOK)


def _pod(options: Options) -> Object:
    code = "import windlass.control.main, windlass.server.main"
    container = workloads.container_of(options, names.SERVER, ["-c", code])
    template = workloads.pod_of(options, names.SERVER, "image-check", container)
    spec = template["spec"]
    for field in ("serviceAccountName", "priorityClassName", "topologySpreadConstraints"):
        del spec[field]  # they may not exist yet
    spec |= {
        "automountServiceAccountToken": False, "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
    }  # fmt: skip
    metadata = names.metadata(NAME, "image-check", names.SYSTEM)
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}


def _verdict(pod: Object) -> str | None:
    """As `problem`; None: not known yet."""
    statuses: list[dict[str, Any]] = (pod.get("status") or {}).get("containerStatuses") or []
    for each in statuses:
        state = each.get("state") or {}
        waiting, ended = state.get("waiting") or {}, state.get("terminated")
        if waiting.get("reason") in _FINAL:
            return f"{waiting['reason']}: {' '.join(waiting.get('message', '').split())}"[:400]
        if ended is not None:
            if not ended.get("exitCode"):
                return ""
            text = " ".join((ended.get("message") or ended.get("reason") or "").split())
            return f"it does not start Windlass: exit code {ended['exitCode']}: {text[-300:]}"
    return None
