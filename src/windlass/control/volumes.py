"""Claims that Runs mount: from which nodes their volumes can be reached, and what they wait for.

Nobody below us checks it for pods that are created on their node. `Volumes` is kept up to date from
what is seen; the scheduler asks it where a Run may go, the run controller what its claims wait for
before it makes the pods. Never writes.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from windlass.core import facts
from windlass.core.constraints import NAME_FIELD
from windlass.kinds import clusterkinds, run
from windlass.store.reflector import Reflector

Kind = (
    clusterkinds.PersistentVolumeClaim | clusterkinds.PersistentVolume | clusterkinds.StorageClass
)
Claims = tuple[
    Reflector[clusterkinds.PersistentVolumeClaim],
    Reflector[clusterkinds.PersistentVolume],
    Reflector[clusterkinds.StorageClass],
]
Terms = tuple[tuple[facts.Requirement, ...], ...]
"""Any of them, all conditions of a term."""
MOUNT = "claim:"
_DEFAULT_CLASS = "storageclass.kubernetes.io/is-default-class"
_STATIC = "kubernetes.io/no-provisioner"


@dataclasses.dataclass(frozen=True, slots=True)
class Reach:
    """What the claims of a Run mean for its members."""

    terms: tuple[Terms, ...] = ()
    """Of each volume; every one must hold."""
    problem: str = ""
    """Why no node at all can be chosen yet, with what helps."""
    unbound: tuple[str, ...] = ()
    """Claims whose volumes are made when it is known for which node."""


def mounted(spec: run.RunSpec) -> list[str]:
    """Names of the claims that members mount."""
    sources = dict.fromkeys(mount.source for mount in spec.mounts or ())
    return [source.removeprefix(MOUNT) for source in sources if source.startswith(MOUNT)]


class Volumes:
    def __init__(self) -> None:
        self._claims: dict[tuple[str, str], clusterkinds.PersistentVolumeClaim] = {}
        self._volumes: dict[tuple[str, str], clusterkinds.PersistentVolume] = {}
        self._classes: dict[tuple[str, str], clusterkinds.StorageClass] = {}
        self._known: dict[type[Kind], dict[tuple[str, str], Any]] = {
            clusterkinds.PersistentVolumeClaim: self._claims,
            clusterkinds.PersistentVolume: self._volumes,
            clusterkinds.StorageClass: self._classes,
        }

    def see(self, before: Kind | None, after: Kind | None) -> None:
        """One of the three kinds changed."""
        changed = after or before
        assert changed is not None, "a change has an object before or after it"  # noqa: S101
        key = changed.namespace, changed.name
        for kind, objects in self._known.items():
            if isinstance(changed, kind):
                objects.pop(key, None)
                if after is not None:
                    objects[key] = after

    def reach(self, owner: run.Run) -> Reach:
        """Where members may go, as far as their claims are concerned."""
        return self.reach_of(owner.namespace, mounted(owner.spec))

    def reach_of(self, namespace: str, names: Iterable[str]) -> Reach:
        """Where who mounts these claims may go."""
        terms: list[Terms] = []
        unbound: list[str] = []
        for name in names:
            claim = self._claims.get((namespace, name))
            if claim is None or claim.metadata.deletion_timestamp:
                gone = "is being deleted" if claim else "does not exist"
                return Reach(problem=f"claim {name} {gone}; create it in {namespace}")
            found = self._bound(claim) if claim.spec.volume_name else self._to_be_made(claim)
            if isinstance(found, str):
                return Reach(problem=found)
            terms += found
            if not is_bound(claim):
                unbound.append(name)
        return Reach(tuple(terms), unbound=tuple(unbound))

    def is_for_one(self, namespace: str, name: str) -> bool:
        """Whether only one pod at a time may use a claim."""
        claim = self._claims.get((namespace, name))
        return claim is not None and clusterkinds.ONE_POD in (claim.spec.access_modes or ())

    def _bound(self, claim: clusterkinds.PersistentVolumeClaim) -> list[Terms] | str:
        volume = self._volumes.get(("", claim.spec.volume_name))
        if volume is None or claim.status.phase == "Lost":
            return f"claim {claim.name} has lost its volume {claim.spec.volume_name}"
        if not is_bound(claim):
            return f"claim {claim.name} is not bound to its volume {volume.name} yet"
        affinity = volume.spec.node_affinity
        if affinity is None or affinity.required is None:
            return []
        return [tuple(_term(term) for term in affinity.required.node_selector_terms or ())]

    def _to_be_made(self, claim: clusterkinds.PersistentVolumeClaim) -> list[Terms] | str:
        made_by = self._class_of(claim)
        if made_by is None:
            return f"claim {claim.name} is not bound, and there is no class to make its volume"
        if made_by.volume_binding_mode != clusterkinds.WAITS_FOR_NODE:
            return f"claim {claim.name} is not bound yet; see kubectl describe pvc {claim.name}"
        if made_by.provisioner == _STATIC:
            return (
                f"claim {claim.name}: volumes of class {made_by.name} are not made on demand; bind "
                "it first, by spec.volumeName of the claim"
            )
        chosen = selected_node(claim)
        if chosen:
            return [((facts.Requirement(NAME_FIELD, "In", (chosen,)),),)]
        terms = tuple(
            tuple(
                facts.Requirement(each.key, "In", tuple(each.values))
                for each in term.match_label_expressions or ()
            )
            for term in made_by.allowed_topologies or ()
        )
        return [terms] if terms else []

    def _class_of(
        self, claim: clusterkinds.PersistentVolumeClaim
    ) -> clusterkinds.StorageClass | None:
        name = claim.spec.storage_class_name
        if name is not None:
            return self._classes.get(("", name))
        usual = (
            each
            for each in self._classes.values()
            if (each.metadata.annotations or {}).get(_DEFAULT_CLASS) == "true"
        )
        return min(usual, key=lambda each: each.name, default=None)


def is_bound(claim: clusterkinds.PersistentVolumeClaim) -> bool:
    return bool(claim.spec.volume_name) and claim.status.phase == "Bound"


def selected_node(claim: clusterkinds.PersistentVolumeClaim) -> str:
    return (claim.metadata.annotations or {}).get(clusterkinds.SELECTED_NODE, "")


def _term(term: clusterkinds.NodeSelectorTerm) -> tuple[facts.Requirement, ...]:
    listed: Iterable[clusterkinds.NodeSelectorRequirement] = (
        *(term.match_expressions or ()),
        *(term.match_fields or ()),
    )
    return tuple(
        facts.Requirement(each.key, each.operator, tuple(each.values or ())) for each in listed
    )
