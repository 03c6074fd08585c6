"""Pods that the run controller has created and the informer has not shown yet.

Only when the informer has shown them all can a Run leave an attempt without listing its pods in the
store, which for a short Run costs as much as all the rest. Expectations exist for attempts that
this leader began: no other process has created pods of them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.control.model import members
from windlass.kinds.types import core, run


class PodExpectations:
    """The expectations of one leader's term."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        self._missing: dict[str, set[str]] = {}
        """By uid of the Run: names of pods whose creation is not confirmed, and uids of created
        pods that the informer has not shown since."""

    def begin(self, owner: run.Run) -> None:
        """Its attempt starts; it has no pods yet."""
        self._attempts[owner.uid] = owner.status.attempt
        self._missing[owner.uid] = set()

    def creating(self, pod: core.Pod) -> None:
        self._missing.get(members.owner_uid(pod), set()).add(pod.name)

    def created(self, pod: core.Pod) -> None:
        """The pod is in the store, with this uid."""
        missing = self._missing.get(members.owner_uid(pod), set())
        missing.discard(pod.name)
        missing.add(pod.uid)

    def satisfied(self, owner: run.Run, shown: Iterable[core.Pod]) -> bool:
        """Whether the informer has shown every pod of the attempt."""
        if self._attempts.get(owner.uid) != owner.status.attempt:
            return False
        missing = self._missing[owner.uid]
        missing.difference_update(pod.uid for pod in shown)
        return not missing

    def forget(self, owner: run.Run) -> None:
        self._attempts.pop(owner.uid, None)
        self._missing.pop(owner.uid, None)
