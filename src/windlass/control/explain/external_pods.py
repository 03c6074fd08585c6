"""External pods for people: their state as text, and as rows of a list.

Pure. `control.explain.service` collects them, `server.platform.handlers.external_pods` answers with
them. The text of one that waits is that of a Run: `control.explain.narrative.of_waiting`.
"""

from __future__ import annotations

import datetime
from typing import Any

from windlass.control.convert import external_pods, pod_groups
from windlass.control.explain import narrative
from windlass.control.model import members
from windlass.kinds.types import core
from windlass.kinds.values import times

GATED, QUEUED, ENDED = "Gated", "Queued", "Ended"
_PHASES = {"succeeded": "Succeeded", "failed": "Failed"}


def phase(pod: core.Pod) -> str:
    """In the words that `ps` has for runs, and Gated: its controller holds it back."""
    if pod.metadata.deletion_timestamp:
        return "Stopping"
    if not members.is_active(pod):
        return _PHASES.get(members.state(pod), ENDED)
    if pod.spec.node_name:
        return "Running" if members.state(pod) == "running" else "Starting"
    return GATED if pod.spec.scheduling_gates else QUEUED


def reason(pod: core.Pod) -> tuple[str, str]:
    """The reason and the message that the scheduler last wrote; "" before it did."""
    for condition in pod.status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            name, _, message = condition.message.partition(": ")
            return name, message
    return "", ""


def row(pod: core.Pod, queue: str) -> dict[str, Any]:
    """A pod as a row of `ps --pods`."""
    state = phase(pod)
    why, message = reason(pod) if state == QUEUED else ("", "")
    if state == GATED:
        message = f"scheduling gates: {_gates(pod)}"
    gang = pod_groups.of(pod)
    return {
        "namespace": pod.namespace,
        "name": pod.name,
        "uid": pod.uid,
        "phase": state,
        "reason": why,
        "message": message,
        "queue": queue,
        "priority": external_pods.priority(pod),
        "node": pod.spec.node_name or "",
        "gang": "" if gang is None else gang.key.partition("/")[2],
        "created": pod.metadata.creation_timestamp,
        "since": since(pod),
    }


def since(pod: core.Pod) -> str:
    """When it was placed; of one that waits, when it was created."""
    for condition in pod.status.conditions or ():
        placed = condition.type == "PodScheduled" and condition.status == "True"
        if placed and condition.last_transition_time:
            return condition.last_transition_time
    return pod.metadata.creation_timestamp or ""


def describe(pod: core.Pod, now: datetime.datetime) -> list[str]:
    """Sentences about a pod that the scheduler has nothing to decide about."""
    owner, scheduler = members.owner_key(pod), pod.spec.scheduler_name
    if owner is not None:
        return [f"It is a replica of run {owner[1]}: `windlass why {owner[1]}` explains it."]
    ours = external_pods.is_ours(pod)
    whose = "" if ours else f" by the scheduler {scheduler or 'default-scheduler'}"
    if pod.metadata.deletion_timestamp:
        return ["It is being deleted."]
    if not members.is_active(pod):
        return [_ending(pod)]
    if pod.spec.node_name:
        age = narrative.ago(since(pod), now)
        return [f"It was placed on {pod.spec.node_name}{whose} {age} ago."]
    if not ours:
        return [
            f"The scheduler {scheduler or 'default-scheduler'} places it, not Windlass.",
            "For a place in a queue of Windlass, its pod template needs schedulerName: windlass.",
        ]
    if pod.spec.scheduling_gates:
        return [f"It waits until its scheduling gates are removed: {_gates(pod)}."]
    return ["The scheduler has not decided about it yet."]


def _ending(pod: core.Pod) -> str:
    """`It failed: ImageNotSupported: ...`, with what the node or the kubelet says of it."""
    state = "It has succeeded." if phase(pod) == "Succeeded" else "It has failed."
    why, message = pod.status.reason or "", pod.status.message or ""
    if phase(pod) == "Failed" and not why and not message:
        found, text, code = members.failure(pod)
        why = str(found) if code is None else f"{found} (exit code {code})"
        message = text.removeprefix(f"{pod.name}: ")
    about = ": ".join(filter(None, (why, message)))
    return f"{state[:-1]}: {about.removesuffix('.')}." if about else state


def _gates(pod: core.Pod) -> str:
    return ", ".join(each.name for each in pod.spec.scheduling_gates or ())


def newest_first(pod: core.Pod) -> float:
    """A sort key."""
    moment = since(pod)
    return -times.parse(moment).timestamp() if moment else 0.0
