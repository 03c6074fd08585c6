"""The input of a step of a Run's life cycle: the Run, its pods, their nodes, the time. Pure.

`control.runs.controller` makes a View, `control.runs.state_machine` reads it. A member is named by
(role, index).
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

from windlass.control.model import attempts, members
from windlass.kinds.types import core, run
from windlass.kinds.values import times

Member = tuple[str, int]
NodeState = Literal["ready", "lost", "gone"]


@dataclasses.dataclass(frozen=True, slots=True)
class Node:
    """How a node fares, as far as its pods are concerned."""

    state: NodeState = "ready"
    """`lost`: silent for so long that its pods' state is unknown; `gone`: certainly nothing runs
    there any more."""
    silent: float = 0.0
    """For how many seconds it has not been ready, as this leader saw it."""
    since: str = ""
    """Since when it has not been ready, as its object says: an earlier leader may have seen it."""


FOR = "to make room for"
"""How the reason of an eviction begins that takes surplus replicas for a workload with a name."""
SUCCESS = "ended with success"
"""How the message of a Run begins that completed."""
_READY = Node()


@dataclasses.dataclass(frozen=True)
class View:
    """Asked again and again in one step: what takes a walk over all pods is kept."""

    owner: run.Run
    pods: Sequence[core.Pod]
    """All that the Run owns, of whatever attempt."""
    epoch: int
    now: datetime.datetime
    nodes: Mapping[str, Node] = dataclasses.field(default_factory=dict)
    """Those that are lost or gone."""
    context: attempts.AttemptContext = dataclasses.field(default_factory=attempts.AttemptContext)
    """What pods of this attempt are rendered with."""
    elapsed: Callable[[str], float] | None = None
    """Seconds since a moment, corrected for changes of the clock; None: it was not changed."""
    closed: str = ""
    """A node of an assignment that has not started which does not take it any more."""

    # --- pods

    @functools.cached_property
    def active(self) -> list[core.Pod]:
        return [pod for pod in self.pods if members.is_active(pod)]

    @functools.cached_property
    def older(self) -> list[core.Pod]:
        """Active pods of attempts that are over."""
        attempt = self.owner.status.attempt
        keys = ((pod, members.key_of(pod)) for pod in self.active)
        return [pod for pod, key in keys if key is not None and key.attempt != attempt]

    @functools.cached_property
    def present(self) -> dict[Member, core.Pod]:
        """This attempt's pods."""
        found: dict[Member, core.Pod] = {}
        for pod in self.pods:
            key = members.key_of(pod)
            if key is not None and key.attempt == self.owner.status.attempt:
                found[key.role, key.index] = pod
        return found

    def node(self, name: str) -> Node:
        return self.nodes.get(name, _READY)

    def node_of(self, pod: core.Pod) -> Node:
        return self.node(pod.spec.node_name or "")

    # --- members

    @functools.cached_property
    def assigned(self) -> dict[str, list[run.Member]]:
        """By role, how many pods are assigned in this attempt."""
        assignment = self.owner.status.assignment
        if assignment is None or assignment.attempt != self.owner.status.attempt:
            return {}
        return assignment.members

    @functools.cached_property
    def sizes(self) -> dict[str, int]:
        """By role, how many members there should be: those that are assigned and not evicted."""
        keep, most = kept_members(self.owner), self._most
        return {
            role: min(len(listed), keep.get(role, len(listed)), most.get(role, len(listed)))
            for role, listed in self.assigned.items()
        }

    @functools.cached_property
    def _most(self) -> Mapping[str, int]:
        """By role, how many members may exist at most: pods that an earlier leader assigned are not
        created before the current one has confirmed the assignment."""
        status = self.owner.status
        if status.phase not in ("Starting", "Running") or not status.members or self.is_current():
            return {}
        keys = [key for pod in self.pods if (key := members.key_of(pod)) is not None]
        counts = started_members(self.owner, keys)
        return {role: counts.get(role, 0) for role in self.assigned}

    @functools.cached_property
    def wanted(self) -> dict[Member, run.Member]:
        sizes = self.sizes
        return {
            (role, index): member
            for role, listed in self.assigned.items()
            for index, member in enumerate(listed[: sizes[role]])
        }

    @functools.cached_property
    def started(self) -> dict[str, int]:
        """By role, how many members this attempt is known to have started."""
        return self.owner.status.members or {}

    def is_current(self) -> bool:
        """Whether the assignment was made, or confirmed, by the current leader."""
        assignment = self.owner.status.assignment
        return assignment is not None and assignment.epoch == self.epoch

    def restart_of(self, member: Member) -> int:
        """The last restart of a member within this attempt: pods made for an earlier one go."""
        restarted = self.owner.status.restarted or {}
        role, index = member
        return max(restarted.get(role, 0), restarted.get(f"{role}/{index}", 0))

    # --- time

    def seconds_since(self, moment: str) -> float:
        if self.elapsed is not None:
            return self.elapsed(moment)
        return (self.now - times.parse(moment)).total_seconds()

    def seconds_in_phase(self) -> float:
        history = self.owner.status.history
        return self.seconds_since(history[-1].at) if history else 0.0


def started_members(owner: run.Run, pods: Iterable[run.MemberKey]) -> dict[str, int]:
    """By role, how many members of this attempt are known to have started, or have a pod."""
    found = dict(owner.status.members or {})
    for key in pods:
        if key.attempt == owner.status.attempt:
            found[key.role] = max(found.get(key.role, 0), key.index + 1)
    return found


def kept_members(owner: run.Run) -> Mapping[str, int]:
    """By role, how many members an eviction lets it keep; roles that it does not touch are not
    named. Nothing of this stands for an eviction of all."""
    eviction = owner.status.eviction
    return (eviction.keep_members if eviction else None) or {}


def resizes_live(owner: run.Run, name: str) -> bool:
    """Whether members of a role may come and go while the others run."""
    return any(
        role.name == name and members.resizes_live(owner.spec, role) for role in owner.spec.roles
    )
