"""The status of a pod from how its containers fare. Pure; `agent.pods` writes it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from windlass.agent.containers import Observed
from windlass.kinds import kubernetes, times

FIRST_RESTART, LONGEST_RESTART = 10.0, 300.0
"""Seconds before a container that ended is started again: doubling with each restart."""


def phase(policy: str, seen: Sequence[Observed]) -> str:
    if any(restart_after(policy, each) is not None for each in seen):
        return "Running"
    if all(each.state == "ended" for each in seen):
        return "Succeeded" if all(each.exit_code == 0 for each in seen) else "Failed"
    return "Pending" if any(each.state == "waiting" for each in seen) else "Running"


def restart_after(policy: str, each: Observed) -> float | None:
    """Seconds of back-off before it starts again; None if it does not."""
    if each.state != "ended" or policy == "Never" or (policy == "OnFailure" and not each.exit_code):
        return None
    return min(LONGEST_RESTART, FIRST_RESTART * 2.0 ** min(each.restarts, 10))


def build(
    pod: kubernetes.Pod, seen: Sequence[Observed], address: str, now: datetime.datetime
) -> dict[str, Any]:
    """What the agent writes into `status`."""
    policy = pod.spec.restart_policy
    current = phase(policy, seen)
    running = bool(seen) and all(each.state == "running" for each in seen)
    images = {container.name: container.image for container in pod.spec.containers}
    return {
        "phase": current,
        "reason": None,
        "message": None,
        "hostIP": address,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": pod.status.start_time or times.seconds(now),
        "conditions": _conditions(pod, current, running, now),
        "containerStatuses": [_container(each, images[each.name], policy) for each in seen],
    }


def refused(
    pod: kubernetes.Pod, reason: str, message: str, now: datetime.datetime
) -> dict[str, Any]:
    """The status of a pod that this node will never run."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": pod.status.start_time or times.seconds(now),
        "conditions": _conditions(pod, "Failed", False, now),
    }


def _container(each: Observed, image: str, policy: str) -> dict[str, Any]:
    status: dict[str, Any] = {
        "name": each.name,
        "image": image,
        "imageID": "",
        "ready": each.state == "running",
        "started": each.state == "running",
        "restartCount": each.restarts,
    }
    if each.state == "running":
        status["state"] = {"running": {"startedAt": _seconds(each.started_at)}}
    elif each.state == "waiting":
        reason = each.reason or "ContainerCreating"
        status["state"] = {"waiting": {"reason": reason, "message": each.message}}
    else:
        ended = {"terminated": _terminated(each)}
        if restart_after(policy, each) is None:
            status["state"] = ended
        else:
            status["state"] = {"waiting": {"reason": "CrashLoopBackOff", "message": ""}}
            status["lastState"] = ended
    return status


def _terminated(each: Observed) -> dict[str, Any]:
    ended: dict[str, Any] = {
        "exitCode": each.exit_code,
        "reason": each.reason,
        "message": each.message,
        "startedAt": _seconds(each.started_at),
        "finishedAt": _seconds(each.finished_at),
    }
    return ended if each.signal is None else ended | {"signal": each.signal}


def _conditions(
    pod: kubernetes.Pod, current: str, running: bool, now: datetime.datetime
) -> list[dict[str, Any]]:
    ended = current in ("Succeeded", "Failed")
    ready = "True" if running else "False"
    wanted = {
        "PodScheduled": "True",
        "Initialized": "True",
        "ContainersReady": ready,
        "Ready": ready,
    }
    known = {condition.type: condition for condition in pod.status.conditions or ()}
    conditions = []
    for name, status in wanted.items():
        old = known.get(name)
        since = old.last_transition_time if old and old.status == status else times.seconds(now)
        condition = {"type": name, "status": status, "lastTransitionTime": since}
        if status == "False":
            condition["reason"] = "PodCompleted" if ended else "ContainersNotReady"
        conditions.append(condition)
    return conditions


def _seconds(moment: str) -> str:
    return times.seconds(times.parse(moment))
