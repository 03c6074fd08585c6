"""What a pod may do with its own token: read what belongs to the run it is a member of.

Its code, and who its fellow members are; nothing else, whatever its service account is bound to.
The token says which pod; whose member that is, is read from the pod's owner each time.
"""

from __future__ import annotations

from windlass.kinds import kubernetes, run
from windlass.server.identity import Identity, PodRef
from windlass.server.rights import Rights, creating_runs, refusal
from windlass.store import client, errors

_ENDED = ("Succeeded", "Failed")


async def live_pod(
    store: client.Store, namespace: str, name: str, uid: str
) -> kubernetes.Pod | None:
    """The pod of that name, if it is the one meant and has not ended."""
    try:
        found = await store.get(kubernetes.Pod, name, namespace)
    except errors.NotFound:
        return None
    return found if found.uid == uid and is_alive(found) else None


def is_alive(pod: kubernetes.Pod) -> bool:
    return pod.status.phase not in _ENDED


class PodRights:
    def __init__(self, store: client.Store, rights: Rights) -> None:
        self._store = store
        self._rights = rights

    async def authorize_blob(
        self, identity: Identity, namespace: str, digest: str, *, read: bool
    ) -> None:
        """Code is for those who may create runs where it lies; a pod may read its own run's."""
        wanted = creating_runs(namespace)
        if identity.pod is None:
            await self._rights.authorize(identity, wanted)
            return
        owner = await self.run_of(identity.pod) if read else None
        code = owner.spec.code if owner is not None and owner.namespace == namespace else None
        if code is None or code.digest != digest:
            raise refusal(identity, wanted)

    async def run_of(self, pod: PodRef) -> run.Run | None:
        """The Run that a pod is a member of, or builds the environment for."""
        found = await live_pod(self._store, pod.namespace, pod.name, pod.uid)
        for owner in (found.metadata.owner_references or ()) if found else ():
            if owner.kind == run.Run.resource.kind:
                try:
                    named = await self._store.get(run.Run, owner.name, pod.namespace)
                except errors.NotFound:
                    return None
                return named if named.uid == owner.uid else None
        return None
