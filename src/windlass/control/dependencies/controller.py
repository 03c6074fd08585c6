"""Records the state of the Runs that other Runs wait for, in `status.after` of those that wait.

`control.manager` runs `Dependencies.reconcile` for Runs with `spec.after`; a change of a Run wakes
its dependents through the index BY_AFTER. It writes `status.after` only: the scheduler lets a Run
into the queue by it, the run controller and the array controller end one that can never start.

A Run is deleted by its `ttlAfterFinished` only after its dependents have noted its end
(`all_recorded`), so no outcome is lost to a crash between the two.
"""

from __future__ import annotations

import msgspec

from windlass.control.model import dependencies, run_indexes
from windlass.control.runtime import controller
from windlass.kinds.types import run
from windlass.store import errors, interface
from windlass.store.informer import Informer

NAME = "dependencies"


class Dependencies:
    """The reconciler."""

    def __init__(self, store: interface.Store, runs: Informer[run.Run]) -> None:
        self._store = store
        self._runs = runs

    async def reconcile(self, key: controller.Key) -> controller.Result:
        namespace, name = key
        owner = await self._read(name, namespace)
        if owner is None or not dependencies.is_waiting(owner):
            return controller.DONE
        missing = [
            each.run for each in owner.spec.after or () if not self._runs.get(each.run, namespace)
        ]
        # The cache may be behind: only the store knows that a Run does not exist.
        late = {each: await self._read(each, namespace) for each in missing}
        found = dependencies.observed(
            owner, lambda each: late.get(each) or self._runs.get(each, namespace)
        )
        if found == (owner.status.after or []):
            return controller.DONE
        patch = {"metadata": {"uid": owner.uid}, "status": {"after": msgspec.to_builtins(found)}}
        try:
            # Without a resourceVersion: only this controller writes the field.
            await self._store.patch(run.Run, name, namespace, patch=patch, subresource="status")
        except (errors.NotFound, errors.Conflict):
            return controller.DONE  # deleted, or replaced by another of the name
        return controller.DONE

    async def _read(self, name: str, namespace: str) -> run.Run | None:
        try:
            return await self._store.get(run.Run, name, namespace)
        except errors.NotFound:
            return None


def dependents(runs: Informer[run.Run], owner: run.Run) -> list[run.Run]:
    """The Runs that name this one in `spec.after`."""
    return runs.by(run_indexes.BY_AFTER, f"{owner.namespace}/{owner.name}")


def all_recorded(runs: Informer[run.Run], owner: run.Run) -> bool:
    """Whether no Run still has to note the end of this one."""
    return all(dependencies.is_recorded(owner, each) for each in dependents(runs, owner))
