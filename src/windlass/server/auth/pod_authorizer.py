"""The permissions of a pod with its own token: to read what belongs to its run.

Its code, and the other replicas; nothing else, whatever the bindings of its service account. The
token identifies the pod; its run is read from the owner of the pod each time.
"""

from __future__ import annotations

from windlass.kinds.types import core, run
from windlass.server.auth.authorization import Rights, creating_runs, refusal
from windlass.server.auth.identity import Identity, PodRef
from windlass.store import errors, interface

_ENDED = ("Succeeded", "Failed")


async def live_pod(store: interface.Store, namespace: str, name: str, uid: str) -> core.Pod | None:
    """The pod of that name, if it has this uid and has not ended."""
    try:
        found = await store.get(core.Pod, name, namespace)
    except errors.NotFound:
        return None
    return found if found.uid == uid and is_alive(found) else None


def is_alive(pod: core.Pod) -> bool:
    return pod.status.phase not in _ENDED


class PodRights:
    def __init__(self, store: interface.Store, rights: Rights) -> None:
        self._store = store
        self._rights = rights

    async def authorize_blob(
        self, identity: Identity, namespace: str, digest: str, *, read: bool
    ) -> None:
        """Code needs the permission to create runs in its namespace; a pod may read that of its
        run."""
        wanted = creating_runs(namespace)
        if identity.pod is None:
            await self._rights.authorize(identity, wanted)
            return
        owner = await self.run_of(identity.pod) if read else None
        code = owner.spec.code if owner is not None and owner.namespace == namespace else None
        if code is None or code.digest != digest:
            raise refusal(identity, wanted)

    async def run_of(self, pod: PodRef) -> run.Run | None:
        """The Run of a replica, or of the pod that builds its environment."""
        found = await live_pod(self._store, pod.namespace, pod.name, pod.uid)
        for owner in (found.metadata.owner_references or ()) if found else ():
            if owner.kind == run.Run.resource.kind:
                try:
                    named = await self._store.get(run.Run, owner.name, pod.namespace)
                except errors.NotFound:
                    return None
                return named if named.uid == owner.uid else None
        return None
