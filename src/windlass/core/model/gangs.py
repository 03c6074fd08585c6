"""Which pods of a running workload are missing or leave, and what that means for a nomination."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.core.model.types import PodAssignment, Running


def missing_pods(running: Running) -> dict[str, list[int]]:
    """Role -> the lowest indexes that must be filled for the gang to have its minimum."""
    workload = running.workload
    if not workload.gang or running.leaving:
        return {}
    found: dict[str, list[int]] = {}
    for role in workload.roles:
        present = {pod.index for pod in running.pods if pod.role == role.name}
        if len(present) < role.min_count:
            free = (number for number in range(role.max_count) if number not in present)
            found[role.name] = [next(free) for _ in range(role.min_count - len(present))]
    return found


def numbered(running: Running | None, pods: Iterable[PodAssignment]) -> tuple[PodAssignment, ...]:
    """The pods with the indexes that they get: those that complete a running gang take the indexes
    of the pods that it lost."""
    if running is None:
        return tuple(pods)
    numbers = {name: iter(indexes) for name, indexes in missing_pods(running).items()}
    return tuple(PodAssignment(s.role, next(numbers[s.role]), s.node, s.grants) for s in pods)


def are_missing(running: Running | None, pods: Iterable[PodAssignment]) -> bool:
    """Whether none of these pods runs already."""
    there = {(pod.role, pod.index) for pod in running.pods} if running is not None else set()
    return there.isdisjoint((pod.role, pod.index) for pod in pods)


def keeps_nomination(running: Running) -> bool:
    """Whether a nomination stays while the workload runs: it lacks pods, or moves elsewhere."""
    return bool(missing_pods(running)) or leaves_whole(running)


def leaves_whole(running: Running) -> bool:
    """Whether all of its pods are being evicted."""
    return bool(running.leaving) and len(running.leaving) == len(running.pods)
