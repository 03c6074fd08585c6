"""Provides volumes for claims that wait for a node: reserves an existing one for the claim, or
selects the node for which one is provisioned.

The same two writes for pods of Runs and for external pods; the caller continues when the cluster
has
bound the claims. Every write has a resourceVersion: of two writers for one volume, one is refused
and decided again.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from windlass.control.volumes import topology
from windlass.core.cluster import constraints
from windlass.core.model import types
from windlass.kinds.types import cluster
from windlass.store import errors, interface

log = logging.getLogger(__name__)

_BY_CONTROLLER = "pv.kubernetes.io/bound-by-controller"


async def provide(
    store: interface.Store,
    known: topology.Volumes,
    namespace: str,
    names: Iterable[str],
    node: types.Node,
) -> bool:
    """For all of these claims without a volume; returns whether the node has what they need."""
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


async def _keep(store: interface.Store, claim: topology.Claim, volume: topology.Volume) -> None:
    """Reserves the volume for this claim; the cluster binds them."""
    known = volume.spec.claim_ref
    if known is not None and known.uid == claim.uid:
        return
    ref = {
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace,
        "name": claim.name, "uid": claim.uid,
        "resourceVersion": claim.metadata.resource_version,
    }  # fmt: skip
    metadata: dict[str, object] = {"resourceVersion": volume.metadata.resource_version}
    if known is None:  # not reserved by a user: it is released with the claim
        metadata["annotations"] = {_BY_CONTROLLER: "yes"}
    log.info("claim %s/%s gets volume %s", claim.namespace, claim.name, volume.name)
    await store.patch(
        cluster.PersistentVolume, volume.name, "",
        patch={"metadata": metadata, "spec": {"claimRef": ref}},
    )  # fmt: skip


async def _make(store: interface.Store, claim: topology.Claim, node: str) -> None:
    if topology.selected_node(claim) == node:
        return
    log.info("claim %s/%s: its volume is to be made for %s", claim.namespace, claim.name, node)
    version, chosen = claim.metadata.resource_version, {cluster.SELECTED_NODE: node}
    await store.patch(
        cluster.PersistentVolumeClaim, claim.name, claim.namespace,
        patch={"metadata": {"resourceVersion": version, "annotations": chosen}},
    )  # fmt: skip
