"""The conditions for creating the pods of an attempt, because no component below checks them again:
their nodes accept them, their claims are bound to reachable volumes, and the cluster admits them.

Called by `control.runs.controller`. Writes nothing but the volume of a claim
(`control.volumes.binding`).
"""

from __future__ import annotations

import dataclasses
import hashlib
import logging
import time
from collections.abc import Callable

import msgspec

from windlass.control.convert import node_facts, run_workloads, runtime_classes
from windlass.control.model import attempts
from windlass.control.model import capabilities as engines
from windlass.control.runs import pod_template
from windlass.control.volumes import binding, topology
from windlass.core.cluster import constraints
from windlass.core.model import types
from windlass.kinds.reasons import Reason
from windlass.kinds.types import cluster, core, run
from windlass.store import errors, interface
from windlass.store.informer import Informer

log = logging.getLogger(__name__)

TRUSTED = 600.0
"""Seconds for which an admitted shape is not tried again."""
_REMEMBERED = 4096


class StartGate:
    """Called by the reconciler of Runs. Without nodes and claims there are no conditions."""

    def __init__(
        self,
        store: interface.Store,
        nodes: Informer[core.Node] | None = None,
        claims: topology.Claims | None = None,
        runtimes: Informer[cluster.RuntimeClass] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._nodes = nodes
        self._claims = claims
        self._clock = clock
        self._volumes = topology.Volumes()
        self._runtimes = runtime_classes.RuntimeClasses()
        self._admitted: dict[bytes, float] = {}
        """Shapes, and the time of their admission."""
        for informer in claims or ():
            informer.add_handler(lambda _, before, after: self._volumes.on_change(before, after))
        if runtimes is not None:
            self._runtimes.watched = True
            runtimes.add_handler(self._runtimes.on_change)

    # --- nodes

    def closed(self, owner: run.Run) -> str:
        """An assigned node that does not accept a Run which has not started: it was cordoned or
        tainted since, or its runtime changed. The scheduler withdraws the assignment when it sees
        that, too."""
        if self._nodes is None:
            return ""
        constraint = self._runtimes.of(owner).narrowed(run_workloads.constraint_of(owner))
        for name in nodes_of(owner):
            node = self._nodes.get(name)
            if node is None or not node_facts.is_open(node):
                return name
            if not constraints.feasible(constraint, node_facts.read_node(node)):
                return name
        return ""

    # --- claims

    async def blocked(self, owner: run.Run, engine: engines.Engine) -> attempts.BlockedReason:
        """What the claims of a starting Run still wait for. Selects the node for volumes that wait
        for their first consumer."""
        self._volumes.kept = engine.kept_claim
        if self._claims is None or not self._volumes.mounted(owner.spec):
            return attempts.BlockedReason()
        reach = self._volumes.reach(owner)
        if reach.problem:
            return attempts.BlockedReason(Reason.WAITING_FOR_DATA, reach.problem)
        if not reach.unbound:
            return self._misplaced(owner, reach.terms)
        node = await self._provide(owner)
        listed = ", ".join(reach.unbound)
        text = f"waiting until claim {listed} has its volume for node {node}"
        return attempts.BlockedReason(Reason.WAITING_FOR_DATA, text)

    def _misplaced(self, owner: run.Run, terms: tuple[types.Terms, ...]) -> attempts.BlockedReason:
        """Volumes that were created for the first replica may be out of reach of others."""
        constraint = types.Constraint(volumes=terms, tolerations=(types.Toleration("", "Exists"),))
        for name in nodes_of(owner) if self._nodes is not None else ():
            node = self._nodes.get(name) if self._nodes is not None else None
            if node is not None and not constraints.feasible(
                constraint, node_facts.read_node(node)
            ):
                text = f"node {name} cannot reach the volumes that it mounts; it is placed again"
                return attempts.BlockedReason(Reason.WAITING_FOR_DATA, text, final=True)
        return attempts.BlockedReason()

    async def _provide(self, owner: run.Run) -> str:
        """Binds for the first of its nodes for which all volumes can be provided; returns that
        node."""
        listed, names = nodes_of(owner), self._volumes.mounted(owner.spec)
        for name in listed if self._nodes is not None else ():
            node = self._nodes.get(name) if self._nodes is not None else None
            if node is not None and await binding.provide(
                self._store, self._volumes, owner.namespace, names, node_facts.read_node(node)
            ):
                return name
        return listed[0]

    # --- admission

    async def refusal(self, owner: run.Run, pods: pod_template.Pods) -> errors.ApiError | None:
        """The refusal of a pod of some role; None if the cluster admits one of each. Tried once for
        each shape."""
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
                    # It exists already; or a webhook does not support dry runs.
                    log.debug("pod %s: not rehearsed: %s", pod.name, error.message)
            self._remember(_shape(owner, role))
        return None

    def forget(self, owner: run.Run) -> None:
        """Forgets the shape, because a pod of it was refused after all."""
        for role in owner.spec.roles:
            self._admitted.pop(_shape(owner, role.name), None)

    def _remember(self, key: bytes) -> None:
        self._admitted.pop(key, None)
        self._admitted[key] = self._clock()
        while len(self._admitted) > _REMEMBERED:
            del self._admitted[next(iter(self._admitted))]


def nodes_of(owner: run.Run) -> list[str]:
    """The nodes of its assignment, in the order of its replicas."""
    assignment = owner.status.assignment
    if assignment is None:
        return []
    listed = (assignment.members.get(role.name, ()) for role in owner.spec.roles)
    return list(dict.fromkeys(member.node for members in listed for member in members))


def _shape(owner: run.Run, name: str) -> bytes:
    """What a pod of a role is rendered from, without the index and the name of the Run."""
    spec = owner.spec
    role = next(each for each in spec.roles if each.name == name)
    parts = [
        owner.namespace, msgspec.structs.replace(role, replicas=0, min_replicas=None),
        spec.framework, spec.environment, spec.code is None, spec.mounts, spec.overrides,
        spec.placement.nodes, spec.checkpoint.grace,
    ]  # fmt: skip
    return hashlib.sha256(msgspec.json.encode(parts)).digest()
