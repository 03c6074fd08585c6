"""Builds the status of a pod from its observed containers. Pure; `agent.pods.worker` writes it."""

from __future__ import annotations

import datetime
from collections.abc import Sequence
from typing import Any

from windlass.agent.runtime.containers import Observed
from windlass.kinds.types import core
from windlass.kinds.values import times

FIRST_RESTART, LONGEST_RESTART = 10.0, 300.0
"""Seconds of back-off before a container is restarted: doubles with each restart."""


def phase(policy: str, seen: Sequence[Observed], before: Sequence[Observed] = ()) -> str:
    """The pod's phase. `before`: the init containers, in order."""
    if not initialized(before):
        failed = any(_failed_for_good(policy, each) for each in before)
        return "Failed" if failed else "Pending"
    if any(restart_after(policy, each) is not None for each in seen):
        return "Running"
    if all(each.state == "ended" for each in seen):
        return "Succeeded" if all(each.exit_code == 0 for each in seen) else "Failed"
    return "Pending" if any(each.state == "waiting" for each in seen) else "Running"


def initialized(before: Sequence[Observed]) -> bool:
    return all(each.state == "ended" and each.exit_code == 0 for each in before)


def init_policy(policy: str) -> str:
    """The restart policy of init containers in a pod with this policy."""
    return "Never" if policy == "Never" else "OnFailure"


def late(
    pod: core.Pod,
    seen: Sequence[Observed],
    before: Sequence[Observed],
    address: str,
    now: datetime.datetime,
) -> dict[str, Any]:
    """The status of a pod that exceeded its active deadline and was stopped."""
    return build(pod, seen, address, now, before) | {
        "phase": "Failed",
        "reason": "DeadlineExceeded",
        "message": (
            f"the pod was active longer than spec.activeDeadlineSeconds "
            f"({pod.spec.active_deadline_seconds} s) allows"
        ),
    }


def restart_after(policy: str, each: Observed) -> float | None:
    """Seconds of back-off before the container restarts; None if it does not."""
    if each.state != "ended" or policy == "Never" or (policy == "OnFailure" and not each.exit_code):
        return None
    return min(LONGEST_RESTART, FIRST_RESTART * 2.0 ** min(each.restarts, 10))


def build(
    pod: core.Pod,
    seen: Sequence[Observed],
    address: str,
    now: datetime.datetime,
    before: Sequence[Observed] = (),
) -> dict[str, Any]:
    """The status of a pod. `before`: the init containers."""
    policy = pod.spec.restart_policy
    current = phase(policy, seen, before)
    running = bool(seen) and all(each.state == "running" for each in seen)
    images = {
        container.name: container.image
        for container in (*(pod.spec.init_containers or ()), *pod.spec.containers)
    }
    ready = initialized(before)
    waiting = "" if ready else "PodInitializing"
    status: dict[str, Any] = {
        "phase": current,
        "reason": None,
        "message": None,
        "hostIP": address,
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": pod.status.start_time or times.seconds(now),
        "conditions": _conditions(pod, current, running, now, initialized=ready),
        "containerStatuses": [
            _container(each, images[each.name], policy, waiting) for each in seen
        ],
    }
    if before:
        status["initContainerStatuses"] = [
            _container(each, images[each.name], init_policy(policy), "") for each in before
        ]
    return status


def refused(pod: core.Pod, reason: str, message: str, now: datetime.datetime) -> dict[str, Any]:
    """The status of a pod that the agent rejects."""
    return {
        "phase": "Failed",
        "reason": reason,
        "message": message,
        "startTime": pod.status.start_time or times.seconds(now),
        "conditions": _conditions(pod, "Failed", False, now),
    }


def _failed_for_good(policy: str, each: Observed) -> bool:
    failed = each.state == "ended" and each.exit_code != 0
    return failed and restart_after(init_policy(policy), each) is None


def _container(each: Observed, image: str, policy: str, waiting: str) -> dict[str, Any]:
    """The status of one container. `waiting`: the default reason of one that has not started."""
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
        reason = each.reason or waiting or "ContainerCreating"
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
    pod: core.Pod,
    current: str,
    running: bool,
    now: datetime.datetime,
    *,
    initialized: bool = True,
) -> list[dict[str, Any]]:
    ended = current in ("Succeeded", "Failed")
    ready = "True" if running else "False"
    wanted = {
        "PodScheduled": "True",
        "Initialized": "True" if initialized else "False",
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
            unready = "ContainersNotInitialized" if name == "Initialized" else "ContainersNotReady"
            condition["reason"] = "PodCompleted" if ended else unready
        conditions.append(condition)
    return conditions


def _seconds(moment: str) -> str:
    return times.seconds(times.parse(moment))
