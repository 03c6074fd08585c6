"""Nodes whose kubelet rejected a pod recently, and the pod shapes for which they are avoided.

A kubelet rejects a pod (OutOfcpu and the like) when it knows of something that we do not: a static
pod, a device that has just failed. It would reject the same shape again, so the node is avoided for
it, twice as long each time. The rejected pods themselves are the record: a new leader that lists
them knows the same. A pod of the shape that runs there since ends it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.control.model import members, retry
from windlass.core.model import types
from windlass.kinds.reasons import Reason
from windlass.kinds.types import core
from windlass.kinds.values import times

Shape = tuple[object, ...]
FORGOTTEN = 3600.0
"""Seconds after which a rejection counts no more."""


def shape_of(role: types.Role) -> Shape:
    """What of a role a kubelet can reject."""
    return tuple(sorted(role.needs.items())), role.devices, role.ports


@dataclasses.dataclass(frozen=True, slots=True)
class _Note:
    node: str
    shape: Shape
    at: float


class KubeletRejections:
    def __init__(self) -> None:
        self._refused: dict[str, _Note] = {}
        """By uid of the pod."""
        self._ran: dict[tuple[str, Shape], float] = {}
        """When a member of the shape last started to run on the node."""

    def record(self, pod: core.Pod, shape: Shape) -> bool:
        """Records the outcome of a pod that it `concerns`; returns whether anything changed."""
        node = pod.spec.node_name or ""
        if members.state(pod) == "failed":
            note = _Note(node, shape, _moment(pod))
            changed = self._refused.get(pod.uid) != note
            self._refused[pod.uid] = note
            return changed
        before = self._ran.get((node, shape), 0.0)
        self._ran[node, shape] = max(before, _moment(pod))
        return before < self._ran[node, shape]

    def concerns(self, pod: core.Pod) -> bool:
        """Whether a pod was rejected, or runs where others were: most are neither."""
        state = members.state(pod)
        if state == "failed":
            return members.failure(pod)[0] is Reason.NODE_REFUSED
        node = pod.spec.node_name
        return state == "running" and any(note.node == node for note in self._refused.values())

    def shapes(self) -> set[Shape]:
        """Shapes that were rejected."""
        return {note.shape for note in self._refused.values()}

    def avoided(self, shape: Shape, now: float) -> frozenset[str]:
        """Nodes that pods of the shape should not be assigned to now."""
        return frozenset(
            node for node, until in self._until(now).get(shape, {}).items() if until > now
        )

    def next_change(self, now: float) -> float | None:
        """When the next node stops being avoided for some shape."""
        ends = (until for found in self._until(now).values() for until in found.values())
        return min((until for until in ends if until > now), default=None)

    def _until(self, now: float) -> dict[Shape, dict[str, float]]:
        """By shape and node, until when the node is avoided."""
        counted: dict[tuple[str, Shape], list[float]] = {}
        old = [uid for uid, note in self._refused.items() if now - note.at >= FORGOTTEN]
        for uid in old:
            del self._refused[uid]
        for note in self._refused.values():
            ran = self._ran.get((note.node, note.shape), 0.0)
            if ran <= note.at:
                counted.setdefault((note.node, note.shape), []).append(note.at)
        found: dict[Shape, dict[str, float]] = {}
        for (node, shape), at in counted.items():
            found.setdefault(shape, {})[node] = max(at) + retry.pause(_spells(at))
        return found


def _spells(moments: Iterable[float]) -> int:
    """How often a node rejected pods: those of one gang that start together count once."""
    count, last = 0, float("-inf")
    for at in sorted(moments):
        if at - last >= 1.0:
            count += 1
        last = at
    return count


def _moment(pod: core.Pod) -> float:
    moment = pod.status.start_time or pod.metadata.creation_timestamp
    return times.parse(moment).timestamp() if moment else 0.0
