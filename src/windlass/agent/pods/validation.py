"""Checks whether the agent supports a pod: the part of the pod spec in docs/reference/pods.md.
Pure."""

from __future__ import annotations

import os
from collections.abc import Sequence

from windlass.agent.pods import volumes
from windlass.kinds.annotations import HOST_IMAGE, ROOT
from windlass.kinds.types import core

IMAGES = ("", HOST_IMAGE)
VOLUMES = frozenset({"emptyDir", "hostPath", "configMap", "secret", "downwardAPI", "projected"})
_PROBES = ("liveness_probe", "readiness_probe", "startup_probe", "lifecycle")
_PROJECTED = frozenset({"configMap", "secret", "downwardAPI", "serviceAccountToken"})


def unsupported(
    pod: core.Pod, *, mounts: bool, images: Sequence[str] = IMAGES
) -> tuple[str, str] | None:
    """Reason and message, with the remedy, if the pod can never run here; None if it can."""
    beside = False
    for container in pod.spec.init_containers or ():
        if beside and container.restart_policy != "Always":
            return "PodNotSupported", (
                f"container {container.name}: this node starts sidecars after all other init "
                "containers; move it before them"
            )
        beside = container.restart_policy == "Always"
    for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        if container.image not in images:
            return "ImageNotSupported", (
                f"container {container.name}: this node runs processes, not images "
                f"({container.image}); leave the image out"
            )
        problem = _container(container, pod)
        if problem:
            return "PodNotSupported", f"container {container.name}{problem}"
    if pod.spec.runtime_class_name:
        return "PodNotSupported", (
            f"runtimeClassName {pod.spec.runtime_class_name}: this node runs processes and has no "
            "other runtime; leave it out"
        )
    problem = _volumes(pod) or ("" if mounts else _outside(pod))
    if problem:
        return "PodNotSupported", problem
    little = "" if mounts else volumes.too_little_shm(pod)
    return ("OutOfSharedMemory", little) if little else None


def _container(container: core.Container, pod: core.Pod) -> str:
    if not container.command:
        return " has no command, and there is no image that could provide one; set command"
    sidecar = container.restart_policy == "Always" and container in (pod.spec.init_containers or ())
    if container.restart_policy and not sidecar:
        return ": restartPolicy is for sidecars, init containers with Always; leave it out"
    for name in _PROBES:
        if getattr(container, name):
            return f": {_camel(name)} is not supported on this node; leave it out"
    return ""


def _volumes(pod: core.Pod) -> str:
    for volume in pod.spec.volumes or ():
        kinds = [key for key in volume if key != "name" and volume[key] is not None]
        name = volume["name"]
        if len(kinds) != 1 or kinds[0] not in VOLUMES:
            what = ", ".join(kinds) or "nothing"
            known = ", ".join(sorted(VOLUMES))
            return f"volume {name} ({what}) is not supported on this node; use one of {known}"
        for part in (volume.get("projected") or {}).get("sources") or ():
            unknown = set(part) - _PROJECTED
            if unknown:
                what = ", ".join(sorted(unknown))
                return f"volume {name}: projected {what} is not supported on this node"
    return ""


def _outside(pod: core.Pod) -> str:
    """The message for a mount that needs root; "" if there is none."""
    by_name = {str(volume["name"]): volume for volume in pod.spec.volumes or ()}
    for container in (*(pod.spec.init_containers or ()), *pod.spec.containers):
        for mount in container.volume_mounts or ():
            path = os.path.normpath(mount.mount_path)
            inside = path.startswith(ROOT + "/")
            if not inside and not volumes.is_shm(by_name.get(mount.name, {}), mount):
                return (
                    f"container {container.name}: mounting at {mount.mount_path} needs root; mount "
                    f"below {ROOT}, or start the engine as root"
                )
    return ""


def _camel(name: str) -> str:
    head, *rest = name.split("_")
    return head + "".join(word.title() for word in rest)
