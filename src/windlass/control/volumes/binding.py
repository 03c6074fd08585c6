"""Gets volumes for claims that wait for their node: keeps one that is there for the claim, or says
for which node one is to be made.

The same two writes for pods of Runs and for pods of other people; whoever places them goes on when
the cluster has bound the claims. Every write names the version that was looked at: of two who want
one volume, one is refused and decided again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from windlass.control import volumes
from windlass.core import constraints, facts
from windlass.kinds import clusterkinds
from windlass.store import client, errors

log = logging.getLogger(__name__)

_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


async def provide(
    store: client.Store,
    known: volumes.Volumes,
    namespace: str,
    names: Iterable[str],
    node: facts.Node,
) -> bool:
    """For all claims of these that have no volume; whether the node has what they need."""
    reach = known.reach_of(namespace, names)
    supply = constraints.supply(reach.storage, node)
    if supply is None:
        return False
    for name, volume in zip(reach.unbound, supply, strict=True):
        claim, found = known.claim(namespace, name), known.volume(volume)
        try:
            if claim is not None and found is not None:
                await _keep(store, claim, found)
            elif claim is not None:
                await _make(store, claim, node.name)
        except (errors.Conflict, errors.NotFound) as error:
            log.info("claim %s/%s: %s", namespace, name, error.message)
    return True


async def _keep(store: client.Store, claim: volumes.Claim, volume: volumes.Volume) -> None:
    """The volume is for this claim; the cluster binds them."""
    known = volume.spec.claim_ref
    if known is not None and known.uid == claim.uid:
        return
    ref = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace,
        "name": claim.name, "uid": claim.uid,
        "resourceVersion": claim.metadata.resource_version,
    }  # fmt: skip
    metadata: dict[str, object] = {"resourceVersion": volume.metadata.resource_version}
    if known is None:  # not kept for it by a person: it is given back with the claim
        metadata["annotations"] = {_BY_CONTROLLER: "yes"}
    log.info("claim %s/%s gets volume %s", claim.namespace, claim.name, volume.name)
    await store.patch(
        clusterkinds.PersistentVolume, volume.name, "",
        patch={"metadata": metadata, "spec": {"claimRef": ref}},
    )  # fmt: skip


async def _make(store: client.Store, claim: volumes.Claim, node: str) -> None:
    if volumes.selected_node(claim) == node:
        return
    log.info("claim %s/%s: its volume is to be made for %s", claim.namespace, claim.name, node)
    version, chosen = claim.metadata.resource_version, {clusterkinds.SELECTED_NODE: node}
    await store.patch(
        clusterkinds.PersistentVolumeClaim, claim.name, claim.namespace,
        patch={"metadata": {"resourceVersion": version, "annotations": chosen}},
    )  # fmt: skip
