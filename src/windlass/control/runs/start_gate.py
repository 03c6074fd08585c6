"""What must hold before the pods of an attempt are made, because nobody below us looks again: their
nodes take them, their claims are bound where they can be reached, and the cluster admits them.

`control.runs` asks. Writes nothing but which volume a claim gets (`control.claiming`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable

import msgspec

from windlass.control import (
    claiming,
    nodefacts,
    podrender,
    runtimeclasses,
    snapshots,
    volumes,
)
from windlass.control import engine as engines
from windlass.core import constraints, facts
from windlass.kinds import clusterkinds, kubernetes, run
from windlass.kinds.reasons import Reason
from windlass.store import client, errors
from windlass.store.reflector import Reflector

log = logging.getLogger(__name__)

TRUSTED = 600.0
"""Seconds for which a shape that was admitted once is not tried again."""
_REMEMBERED = 4096


class Gate:
    """Asked by the reconciler of Runs. Without nodes and claims all is as it should be."""

    def __init__(
        self,
        store: client.Store,
        nodes: Reflector[kubernetes.Node] | None = None,
        claims: volumes.Claims | None = None,
        runtimes: Reflector[clusterkinds.RuntimeClass] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._claims = claims
        self._clock = clock
        self._volumes = volumes.Volumes()
        self._runtimes = runtimeclasses.RuntimeClasses()
        self._admitted: dict[bytes, float] = {}
        """Shapes, and when they were admitted."""
        for reflector in claims or ():
            reflector.add_handler(lambda _, before, after: self._volumes.see(before, after))
        if runtimes is not None:
            self._runtimes.watched = True
            runtimes.add_handler(self._runtimes.see)

    # --- nodes

    def closed(self, owner: run.Run) -> str:
        """A node that was given to a Run which has not started and does not take it now: somebody
        cordoned or tainted it since, or its runtime is elsewhere by now. The scheduler takes the
        room back when it sees that, too."""
        if self._nodes is None:
            return ""
        constraint = self._runtimes.of(owner).narrowed(snapshots.constraint_of(owner))
        for name in nodes_of(owner):
            node = self._nodes.get(name)
            if node is None or not nodefacts.is_open(node):
                return name
            if not constraints.accepts(constraint, nodefacts.read_node(node)):
                return name
        return ""

    # --- claims

    async def hindrance(self, owner: run.Run, engine: engines.Engine) -> podrender.Hindrance:
        """What the claims of a Run that starts still wait for. Says for which node volumes are to
        be made that wait for that."""
        self._volumes.kept = engine.kept_claim
        if self._claims is None or not self._volumes.mounted(owner.spec):
            return podrender.Hindrance()
        reach = self._volumes.reach(owner)
        if reach.problem:
            return podrender.Hindrance(Reason.WAITING_FOR_DATA, reach.problem)
        if not reach.unbound:
            return self._misplaced(owner, reach.terms)
        node = await self._provide(owner)
        listed = ", ".join(reach.unbound)
        words = f"waiting until claim {listed} has its volume for node {node}"
        return podrender.Hindrance(Reason.WAITING_FOR_DATA, words)

    def _misplaced(self, owner: run.Run, terms: tuple[facts.Terms, ...]) -> podrender.Hindrance:
        """Volumes that were made for the first member may be out of reach of others."""
        constraint = facts.Constraint(volumes=terms, tolerations=(facts.Toleration("", "Exists"),))
        for name in nodes_of(owner) if self._nodes is not None else ():
            node = self._nodes.get(name) if self._nodes is not None else None
            if node is not None and not constraints.accepts(constraint, nodefacts.read_node(node)):
                words = f"node {name} cannot reach the volumes that it mounts; it is placed again"
                return podrender.Hindrance(Reason.WAITING_FOR_DATA, words, final=True)
        return podrender.Hindrance()

    async def _provide(self, owner: run.Run) -> str:
        """For the first of its nodes for which all volumes can be had; that node."""
        listed, names = nodes_of(owner), self._volumes.mounted(owner.spec)
        for name in listed if self._nodes is not None else ():
            node = self._nodes.get(name) if self._nodes is not None else None
            if node is not None and await claiming.provide(
                self._store, self._volumes, owner.namespace, names, nodefacts.read_node(node)
            ):
                return name
        return listed[0]

    # --- admission

    async def refusal(self, owner: run.Run, pods: podrender.Pods) -> errors.ApiError | None:
        """How the cluster refuses a pod of some role; None if it admits one of each. Asked once
        for each shape."""
        first: dict[str, tuple[str, int]] = {}
        for member in sorted(pods.members):
            first.setdefault(member[0], member)
        for role, member in first.items():
            known = self._admitted.get(_shape(owner, role))
            if known is not None and self._clock() - known < TRUSTED:
                continue
            one = dataclasses.replace(pods, members={member: pods.members[member]})
            for pod in one:
                try:
                    await self._store.create(pod, dry_run=True)
                except (errors.Forbidden, errors.Invalid) as error:
                    return error
                except (errors.AlreadyExists, errors.BadRequest) as error:
                    # It is there already; or a webhook that cannot be asked without consequences.
                    log.debug("pod %s: not rehearsed: %s", pod.name, error.message)
            self._remember(_shape(owner, role))
        return None

    def forget(self, owner: run.Run) -> None:
        """A pod of it was refused after all."""
        for role in owner.spec.roles:
            self._admitted.pop(_shape(owner, role.name), None)

    def _remember(self, key: bytes) -> None:
        self._admitted.pop(key, None)
        self._admitted[key] = self._clock()
        while len(self._admitted) > _REMEMBERED:
            del self._admitted[next(iter(self._admitted))]


def nodes_of(owner: run.Run) -> list[str]:
    """The nodes of its assignment, in the order of its members."""
    room = owner.status.assignment
    if room is None:
        return []
    listed = (room.members.get(role.name, ()) for role in owner.spec.roles)
    return list(dict.fromkeys(member.node for members in listed for member in members))


def _shape(owner: run.Run, name: str) -> bytes:
    """What a pod of a role is made from, but for which member of which Run it is."""
    spec = owner.spec
    role = next(each for each in spec.roles if each.name == name)
    parts = [
        owner.namespace, msgspec.structs.replace(role, replicas=0, min_replicas=None),
        spec.framework, spec.environment, spec.code is None, spec.mounts, spec.overrides,
        spec.placement.nodes, spec.checkpoint.grace,
    ]  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(parts)).digest()
