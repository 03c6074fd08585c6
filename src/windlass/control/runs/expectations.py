"""Whether the cache shows all pods of an attempt: only then can a Run leave it without asking the
store, which for a short Run costs as much as all the rest.

Known of attempts that this leader began: nobody else has made pods of them. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable

from windlass.control import members
from windlass.kinds import kubernetes, run


class Begun:
    """Of one leader's term."""

    def __init__(self) -> None:
        self._attempts: dict[str, int] = {}
        self._missing: dict[str, set[str]] = {}
        """By uid of the Run: names of pods whose making was not confirmed, and uids of those that
        the cache has not shown since."""

    def begin(self, owner: run.Run) -> None:
        """Its attempt starts; no pod of it was made yet."""
        self._attempts[owner.uid] = owner.status.attempt
        self._missing[owner.uid] = set()

    def making(self, pod: kubernetes.Pod) -> None:
        self._missing.get(members.owner_uid(pod), set()).add(pod.name)

    def made(self, pod: kubernetes.Pod) -> None:
        """It is in the store, with this uid."""
        missing = self._missing.get(members.owner_uid(pod), set())
        missing.discard(pod.name)
        missing.add(pod.uid)

    def all_shown(self, owner: run.Run, shown: Iterable[kubernetes.Pod]) -> bool:
        """Whether there is no pod of the attempt that the cache has never shown."""
        if self._attempts.get(owner.uid) != owner.status.attempt:
            return False
        missing = self._missing[owner.uid]
        missing.difference_update(pod.uid for pod in shown)
        return not missing

    def forget(self, owner: run.Run) -> None:
        self._attempts.pop(owner.uid, None)
        self._missing.pop(owner.uid, None)
