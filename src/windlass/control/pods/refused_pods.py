"""Pods that the engine will never run: a condition and an event give the reason at once.

On Kubernetes other schedulers and kubelets report on their pods. Where no other component does, a
capability of the engine says so: a pod for another scheduler would wait without a word, and the
refusal of a node would be in the pod's status only.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from windlass.control.model import capabilities, members
from windlass.control.runtime import controller, event_recorder
from windlass.kinds.annotations import HOST_IMAGE
from windlass.kinds.types import core, meta
from windlass.kinds.values import times
from windlass.store import errors, interface
from windlass.store.informer import Informer

NAME = "refused-pods"
_REFUSALS = frozenset({"ImageNotSupported", "PodNotSupported", "MountFailed"})
"""Reasons with which a node refuses a pod before it starts."""


class RefusedPods:
    """The reconciler of one pod that belongs to no Run."""

    def __init__(
        self,
        store: interface.Store,
        pods: Informer[core.Pod],
        engine: Callable[[], capabilities.Engine],
    ) -> None:
        self._store = store
        self._pods = pods
        self._engine = engine

    async def reconcile(self, key: controller.Key) -> controller.Result:
        namespace, name = key
        pod = self._pods.get(name, namespace)
        if pod is None or not concerns(pod) or self._engine().other_schedulers:
            return controller.DONE
        if pod.status.phase == "Failed":
            message = f"{pod.status.reason}: {pod.status.message}"
            await self._record(pod, "FailedToStart", message)
        else:
            await self._unscheduled(pod)
        return controller.DONE

    async def _unscheduled(self, pod: core.Pod) -> None:
        message = _reason_to_wait(pod, self._engine())
        known = next((c for c in pod.status.conditions or () if c.type == "PodScheduled"), None)
        if known is None or known.message != message:
            condition = meta.Condition(
                type="PodScheduled",
                status="False",
                reason="Unschedulable",
                message=message,
                last_transition_time=times.seconds(times.now()),
            )
            others = [c for c in pod.status.conditions or () if c.type != "PodScheduled"]
            about = {"uid": pod.uid, "resourceVersion": pod.metadata.resource_version}
            conditions = msgspec.to_builtins([*others, condition])
            try:
                await self._store.patch(
                    core.Pod, pod.name, pod.namespace, subresource="status",
                    patch={"metadata": about, "status": {"conditions": conditions}},
                )  # fmt: skip
            except (errors.Conflict, errors.NotFound):
                return  # it changed since; the change brings it here again
        await self._record(pod, "FailedScheduling", message)

    async def _record(self, pod: core.Pod, reason: str, message: str) -> None:
        await event_recorder.record(
            self._store, pod, event_recorder.WARNING, reason, message, "windlass-controllers"
        )


def concerns(pod: core.Pod) -> bool:
    """Whether the pod may need a report: it is no Run's, and waits for another scheduler or was
    refused."""
    if members.owner_uid(pod) or pod.metadata.deletion_timestamp:
        return False
    if pod.status.phase == "Failed":
        return pod.status.reason in _REFUSALS
    return not pod.spec.node_name and pod.spec.scheduler_name != members.SCHEDULER


def _reason_to_wait(pod: core.Pod, engine: capabilities.Engine) -> str:
    wanted = pod.spec.scheduler_name or "default-scheduler"
    message = f"no scheduler named {wanted} runs here; set spec.schedulerName: {members.SCHEDULER}"
    images = sorted({each.image for each in pod.spec.containers if each.image != HOST_IMAGE})
    if engine.images or not images:
        return message
    return (
        f"{message}. This engine runs processes, not images ({', '.join(images)}): "
        f"set image: {HOST_IMAGE}"
    )
