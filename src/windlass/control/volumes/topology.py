"""Claims of replicas: the nodes that can reach their volumes, and what they wait for.

No component below checks it for pods that are created on their node, and external pods are placed
by
the same rules; a differential test compares them with kube-scheduler. Informers keep `Volumes` up
to
date. The scheduler reads the feasible nodes, and the caller that places pods reads the claims for
which volumes must be provided first (`control.volumes.binding`). Never writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from windlass.control.model import pod_setup, selectors
from windlass.core.cluster import constraints
from windlass.core.cluster.constraints import NAME_FIELD
from windlass.core.model import types
from windlass.kinds.types import cluster, run
from windlass.kinds.values import quantity
from windlass.store.informer import Informer

Claim = cluster.PersistentVolumeClaim
Volume = cluster.PersistentVolume
Kind = Claim | Volume | cluster.StorageClass | cluster.CSIDriver | cluster.CSIStorageCapacity
Claims = tuple[Informer[Claim], Informer[Volume], Informer[cluster.StorageClass]]
"""Claims, volumes and their classes."""
StorageCapacityInformers = tuple[Informer[cluster.CSIDriver], Informer[cluster.CSIStorageCapacity]]
"""Where volumes can be provisioned."""
Handle = tuple[str, str]
"""A volume to attach: the driver, and the driver's name of the volume."""
MOUNT = "claim:"
BIND_COMPLETED = "pv.kubernetes.io/bind-completed"
_CLASS = "volume.beta.kubernetes.io/storage-class"
_STATIC = "kubernetes.io/no-provisioner"
_NOT_YET = "is not bound yet; see kubectl describe pvc"
_ZONES = {
    "failure-domain.beta.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "failure-domain.beta.kubernetes.io/region": "topology.kubernetes.io/region",
    "topology.kubernetes.io/zone": "topology.kubernetes.io/zone",
    "topology.kubernetes.io/region": "topology.kubernetes.io/region",
}
"""Labels of volumes with their zone, and the present names of the same labels of nodes."""
_ALWAYS = types.Requirement("", "DoesNotExist")
_NO_ZONES = tuple(types.Requirement(key, "DoesNotExist") for key in _ZONES)


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """The constraints of claims on the replicas that mount them."""

    terms: tuple[types.Terms, ...] = ()
    """Of each volume; every one must hold."""
    problem: str = ""
    """Why no node can be chosen yet, with the remedy."""
    unbound: tuple[str, ...] = ()
    """Claims whose volumes are found or provisioned once the node is known."""
    storage: tuple[types.Storage, ...] = ()
    """What each of these can get."""
    attach: tuple[tuple[str, int], ...] = ()
    """Volumes that are attached nowhere yet, by driver, of drivers with limits."""
    too_many: frozenset[str] = frozenset()
    """Nodes that cannot attach volumes from elsewhere besides what they have."""

    def bounds(self, role: types.Role) -> types.Role:
        """The role with the constraints of the claims."""
        not_now = role.constraint.not_now | self.too_many
        constraint = dataclasses.replace(
            role.constraint, volumes=self.terms, storage=self.storage, not_now=not_now
        )
        return dataclasses.replace(role, constraint=constraint, attach=self.attach)


def mounted(spec: run.RunSpec, kept: str = "") -> list[str]:
    """Names of the claims that replicas mount. `kept`: the claim with shared environments, which no
    spec names: every run with an environment mounts it."""
    if not spec.mounts and spec.environment is None:
        return []
    sources = dict.fromkeys(mount.source for mount in spec.mounts or ())
    found = [source.removeprefix(MOUNT) for source in sources if source.startswith(MOUNT)]
    wants = kept and kept not in found and pod_setup.builds_environment(spec)
    return [*found, kept] if wants else found


class Volumes:
    def __init__(self) -> None:
        self.kept = ""
        """Name of the claim with shared environments, if the engine has such claims."""
        self._claims: dict[tuple[str, str], Claim] = {}
        self._volumes: dict[tuple[str, str], Volume] = {}
        self._classes: dict[tuple[str, str], cluster.StorageClass] = {}
        self._drivers: dict[tuple[str, str], cluster.CSIDriver] = {}
        self._capacities: dict[tuple[str, str], cluster.CSIStorageCapacity] = {}
        self._known: dict[type[Kind], dict[tuple[str, str], Any]] = {
            Claim: self._claims,
            Volume: self._volumes,
            cluster.StorageClass: self._classes,
            cluster.CSIDriver: self._drivers,
            cluster.CSIStorageCapacity: self._capacities,
        }

    def on_change(self, before: Kind | None, after: Kind | None) -> None:
        """One of these kinds changed."""
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        key = changed.namespace, changed.name
        objects = self._known[type(changed)]
        objects.pop(key, None)
        if after is not None:
            objects[key] = after

    def claim(self, namespace: str, name: str) -> Claim | None:
        return self._claims.get((namespace, name))

    def volume(self, name: str) -> Volume | None:
        return self._volumes.get(("", name))

    def mounted(self, spec: run.RunSpec) -> list[str]:
        return mounted(spec, self.kept)

    def reach(self, owner: run.Run) -> Reach:
        """The feasible nodes of replicas, as far as their claims are concerned."""
        found = self.reach_of(owner.namespace, self.mounted(owner.spec))
        unnamed = self.kept and self.kept not in mounted(owner.spec)
        if not (unnamed and found.problem.startswith(f"claim {self.kept} ")):
            return found
        message = f"{found.problem}, this cluster keeps environments there"
        return dataclasses.replace(found, problem=message)

    def reach_of(self, namespace: str, names: Iterable[str]) -> Reach:
        """The constraints of these claims."""
        terms: list[types.Terms] = []
        unbound: list[Claim] = []
        for name in dict.fromkeys(names):
            claim = self._claims.get((namespace, name))
            if claim is None or claim.metadata.deletion_timestamp:
                gone = "is being deleted" if claim else "does not exist"
                return Reach(problem=f"claim {name} {gone}; create it in {namespace}")
            if problem := self._problem(claim):
                return Reach(problem=problem)
            if claim.spec.volume_name:
                terms += _reached_from(self._volumes["", claim.spec.volume_name])
            else:
                unbound.append(claim)
        # The smallest request first, so that large volumes are left for large requests.
        unbound.sort(key=_wanted)
        names, storage = tuple(claim.name for claim in unbound), tuple(map(self._supply, unbound))
        for claim, found in zip(unbound, storage, strict=True):
            if not found.among and found.made is None:
                message = f"no volume of class {_class_of(claim)} that is free would do; add one"
                return Reach(problem=f"claim {claim.name}: {message}")
        return Reach(tuple(terms), unbound=names, storage=storage)

    def is_for_one(self, namespace: str, name: str) -> bool:
        """Whether only one pod at a time may use a claim."""
        claim = self._claims.get((namespace, name))
        return claim is not None and cluster.ONE_POD in (claim.spec.access_modes or ())

    def handle(self, namespace: str, name: str) -> Handle | None:
        """What is attached to the node of a pod with this claim; None: nothing that a driver
        counts. A volume that does not exist yet counts for the driver that will provision it."""
        claim = self._claims.get((namespace, name))
        if claim is None:
            return None
        if ("", claim.spec.volume_name) in self._volumes:
            return self.handle_of(claim.spec.volume_name)
        made_by = self._classes.get(("", _class_of(claim)))
        if made_by is None or not made_by.provisioner:
            return None
        return made_by.provisioner, f"claim {namespace}/{name}"

    def handle_of(self, name: str) -> Handle | None:
        """The driver's name of a volume; None: no driver has it."""
        volume = self._volumes.get(("", name))
        csi = volume.spec.csi if volume is not None else None
        return (csi.driver, csi.volume_handle) if csi is not None and csi.volume_handle else None

    # --- one claim

    def _problem(self, claim: Claim) -> str:
        """Why a workload with the claim cannot be decided yet."""
        name = claim.spec.volume_name
        if name:
            if claim.status.phase == "Lost" or (is_bound(claim) and self.volume(name) is None):
                return f"claim {claim.name} has lost its volume {name}"
            is_there = is_bound(claim)
            return "" if is_there else f"claim {claim.name}: volume {name} {_NOT_YET} {claim.name}"
        made_by = self._classes.get(("", _class_of(claim)))
        if made_by is None:
            return f"claim {claim.name} is not bound, and there is no class to make its volume"
        if made_by.volume_binding_mode != cluster.WAITS_FOR_NODE:
            return f"claim {claim.name} {_NOT_YET} {claim.name}"
        return ""

    def _supply(self, claim: Claim) -> types.Storage:
        """What a claim without a volume can get."""
        made_by = self._classes["", _class_of(claim)]
        made = self._made(claim, made_by)
        chosen = selected_node(claim)
        if chosen:  # it is being provisioned there
            here = ((types.Requirement(NAME_FIELD, "In", (chosen,)),),)
            return types.Storage(made=None if made is None else (*made, here))
        found = [each for each in self._volumes.values() if _would_do(each, claim)]
        kept = [each for each in found if each.spec.claim_ref is not None]
        found = kept or [each for each in found if _is_open_to(each, claim)]
        found.sort(key=lambda each: (_size(each.spec.capacity), each.name))
        return types.Storage(tuple((each.name, _affinity(each)) for each in found), made)

    def _made(self, claim: Claim, made_by: cluster.StorageClass) -> tuple[types.Terms, ...] | None:
        """Where a volume of a class can be provisioned."""
        if made_by.provisioner in ("", _STATIC):
            return None
        found: list[types.Terms] = []
        if made_by.allowed_topologies:
            found.append(
                tuple(
                    tuple(
                        types.Requirement(each.key, "In", tuple(each.values))
                        for each in term.match_label_expressions or ()
                    )
                    for term in made_by.allowed_topologies
                )
            )
        driver = self._drivers.get(("", made_by.provisioner))
        if driver is not None and driver.spec.storage_capacity and _wanted(claim):
            places = [
                selectors.requirements(each.node_topology)
                for each in self._capacities.values()
                if each.storage_class_name == made_by.name and each.node_topology is not None
                if _largest(each) >= _wanted(claim)
            ]
            if all(places):  # none of them is without a constraint
                found.append(tuple(places))
        return tuple(found)


# --- claims


def claims_of(*seen: Kind | None) -> list[tuple[str, str]]:
    """The claims that a change affects, by namespace and name."""
    found = [(each.namespace, each.name) for each in seen if isinstance(each, Claim)]
    refs = (each.spec.claim_ref for each in seen if isinstance(each, Volume))
    return found + [(ref.namespace, ref.name) for ref in refs if ref is not None]


def is_bound(claim: Claim) -> bool:
    done = BIND_COMPLETED in (claim.metadata.annotations or {})
    return bool(claim.spec.volume_name) and done and claim.status.phase != "Lost"


def selected_node(claim: Claim) -> str:
    return (claim.metadata.annotations or {}).get(cluster.SELECTED_NODE, "")


def _class_of(claim: Claim) -> str:
    return (claim.metadata.annotations or {}).get(_CLASS) or claim.spec.storage_class_name or ""


def _wanted(claim: Claim) -> int:
    return _size(claim.spec.resources.requests)


def _size(amounts: dict[str, Any] | None) -> int:
    return quantity.whole((amounts or {}).get("storage", 0))


# --- volumes


def _would_do(volume: Volume, claim: Claim) -> bool:
    """Whether it satisfies the claim, and is of no other claim."""
    spec, wants, ref = volume.spec, claim.spec, volume.spec.claim_ref
    if ref is not None and not (
        (ref.namespace, ref.name) == (claim.namespace, claim.name) and ref.uid in ("", claim.uid)
    ):
        return False
    return (
        _size(spec.capacity) >= _wanted(claim)
        and (spec.volume_mode or "Filesystem") == (wants.volume_mode or "Filesystem")
        and spec.volume_attributes_class_name == wants.volume_attributes_class_name
        and not volume.metadata.deletion_timestamp
    )


def _is_open_to(volume: Volume, claim: Claim) -> bool:
    """Of a volume without a claim: whether the claim may have it."""
    labels, wanted = volume.metadata.labels or {}, claim.spec.selector
    annotations = volume.metadata.annotations or {}
    return (
        volume.status.phase == "Available"
        and (annotations.get(_CLASS) or volume.spec.storage_class_name) == _class_of(claim)
        and set(claim.spec.access_modes or ()) <= set(volume.spec.access_modes or ())
        and (
            wanted is None
            or all(constraints.holds(each, labels) for each in selectors.requirements(wanted))
        )
    )


def _reached_from(volume: Volume) -> list[types.Terms]:
    """The nodes that reach a bound volume: by its affinity, and by its labels."""
    affinity = _affinity(volume)
    found = [] if affinity is None else [affinity]
    for key, today in _ZONES.items():
        label = (volume.metadata.labels or {}).get(key)
        values = tuple(part.strip() for part in label.split("__")) if label else ()
        if not all(values) or not values:
            continue
        here: types.Terms = ((types.Requirement(key, "In", values),),)
        if today != key:
            older = types.Requirement(key, "DoesNotExist")
            here = (*here, (older, types.Requirement(today, "In", values)))
        # A node without a zone label is in the only zone.
        found.append((*here, _NO_ZONES))
    return found


def _affinity(volume: Volume) -> types.Terms | None:
    affinity = volume.spec.node_affinity
    if affinity is None or affinity.required is None:
        return None
    return tuple(_term(term) for term in affinity.required.node_selector_terms or ())


def _term(term: cluster.NodeSelectorTerm) -> tuple[types.Requirement, ...]:
    """Volume constraints use labels only: a condition on the node's name always holds."""
    return (
        *(
            types.Requirement(each.key, each.operator, tuple(each.values or ()))
            for each in term.match_expressions or ()
        ),
        *(_ALWAYS for _ in term.match_fields or ()),
    )


def _largest(capacity: cluster.CSIStorageCapacity) -> int:
    """The largest volume that can be provisioned; -1: unknown."""
    size = capacity.maximum_volume_size or capacity.capacity
    return -1 if size is None else quantity.whole(size)
