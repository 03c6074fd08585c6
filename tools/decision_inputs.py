"""Inputs and outputs of the scheduling core as plain documents, for `tools.decisions`.

This is the only module of the tool that knows names of the core and of the simulator. The keys of
the documents never change, so that the same inputs are played before and after a refactoring, and
the recordings of both can be compared. A rename in the core is followed here and nowhere else.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from windlass.core.cycle import cycle
from windlass.core.model import types
from windlass.core.snapshot import snapshot
from windlass.kinds.reasons import Reason
from windlass.sim import engine, policy_grid, scenario
from windlass.sim.inputs import yaml_scenario

Document = Mapping[str, Any]
Answer = tuple[dict[str, Any], list[str]]
"""A decision as a document, and its traits: what kinds of content it has."""


# --- documents into values of the core ------------------------------------------------------------


@dataclasses.dataclass(frozen=True, slots=True)
class Form:
    """How documents become values of one class: for each key the parameter, and how it is read."""

    make: Callable[..., Any]
    fields: Mapping[str, tuple[str, Callable[[Any], Any]]]

    def __call__(self, document: Document) -> Any:
        unknown = sorted(document.keys() - self.fields.keys())
        if unknown:
            raise ValueError(f"{self.make.__name__} has no key {unknown[0]!r}")
        given = ((*self.fields[key], value) for key, value in document.items() if value is not None)
        return self.make(**{name: read(value) for name, read, value in given})


def _same(value: Any) -> Any:
    return value


def _each(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda values: tuple(read(value) for value in values)


def _pairs(value: Any) -> tuple[tuple[Any, Any], ...]:
    items = value.items() if isinstance(value, Mapping) else value
    return tuple((one, other) for one, other in items)


def _reason(value: Any) -> tuple[Reason, str]:
    return Reason(value[0]), value[1]


def _shared(read: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Equal documents become one value, as equal roles of real workloads do."""
    known: dict[str, Any] = {}

    def found(value: Any) -> Any:
        text = json.dumps(value, sort_keys=True)
        if text not in known:
            known[text] = read(value)
        return known[text]

    return found


_NAMES = _each(_same)
_PROFILE = Form(types.Profile, {
    "name": ("name", _same), "slices": ("slices", _same), "starts": ("starts", _NAMES),
    "compute": ("compute", _same),
})  # fmt: skip
_DEVICE = Form(types.Device, {
    "id": ("id", _same), "kind": ("kind", _same), "model": ("model", _same),
    "compute": ("compute", _same), "memory": ("memory", _same), "numa": ("numa", _same),
    "switch": ("switch", _same), "links": ("links", _same), "slices": ("slices", _same),
    "profiles": ("profiles", _each(_PROFILE)), "forms": ("forms", frozenset),
    "isolation": ("isolation", _same), "healthy": ("healthy", _same),
})  # fmt: skip
_NUMA = Form(types.Domain, {"id": ("id", _same), "allocatable": ("allocatable", _same)})
_TAINT = Form(types.Taint, {
    "key": ("key", _same), "value": ("value", _same), "effect": ("effect", _same),
})  # fmt: skip
_NODE = Form(types.Node, {
    "name": ("name", _same), "allocatable": ("allocatable", _same),
    "devices": ("devices", _shared(_each(_DEVICE))), "labels": ("labels", _same),
    "taints": ("taints", _each(_TAINT)), "ready": ("ready", _same), "path": ("path", _NAMES),
    "readyIn": ("ready_in", _same), "attachLimits": ("attach_limits", _same),
    "price": ("price", _same), "capabilities": ("capabilities", frozenset),
    "numa": ("numa", _shared(_each(_NUMA))),
})  # fmt: skip
_DEVICE_REQUEST = Form(types.DeviceRequest, {
    "kind": ("kind", _same), "count": ("count", _same), "ratio": ("ratio", _same),
    "compute": ("compute", _same), "memory": ("memory", _same), "profile": ("profile", _same),
    "models": ("models", _NAMES), "isolation": ("isolation", _same),
})  # fmt: skip
_REQUIREMENT = Form(types.Requirement, {
    "key": ("key", _same), "operator": ("operator", _same), "values": ("values", _NAMES),
})  # fmt: skip
_REQUIREMENTS = _each(_REQUIREMENT)
_TERMS = _each(_REQUIREMENTS)
_TOLERATION = Form(types.Toleration, {
    "key": ("key", _same), "operator": ("operator", _same), "value": ("value", _same),
    "effect": ("effect", _same),
})  # fmt: skip


def _volume(value: Any) -> tuple[str, Any]:
    return value[0], None if value[1] is None else _TERMS(value[1])


_STORAGE = Form(types.Storage, {
    "candidates": ("among", _each(_volume)), "provisioned": ("made", _each(_TERMS)),
})  # fmt: skip
_CONSTRAINT = Form(types.Constraint, {
    "selector": ("selector", _pairs), "affinity": ("affinity", _TERMS),
    "tolerations": ("tolerations", _each(_TOLERATION)), "volumes": ("volumes", _each(_TERMS)),
    "storage": ("storage", _each(_STORAGE)), "nodes": ("names", frozenset),
    "notNow": ("not_now", frozenset), "capabilities": ("capabilities", frozenset),
})  # fmt: skip
_PREFERENCE = Form(types.Preference, {
    "match": ("match", _REQUIREMENTS), "points": ("weight", _same),
})  # fmt: skip
_AFFINITY = Form(types.Affinity, {
    "key": ("key", _same), "match": ("match", _REQUIREMENTS), "anti": ("anti", _same),
    "namespaces": ("namespaces", frozenset), "required": ("required", _same),
    "weight": ("weight", _same),
})  # fmt: skip
_SPREAD = Form(types.Spread, {
    "key": ("key", _same), "match": ("match", _REQUIREMENTS), "skew": ("skew", _same),
    "required": ("required", _same), "minDomains": ("min_domains", _same),
    "byAffinity": ("by_affinity", _same), "byTaints": ("by_taints", _same),
})  # fmt: skip
_ROLE = Form(types.Role, {
    "name": ("name", _same), "min": ("min_count", _same), "max": ("max_count", _same),
    "requests": ("needs", _same), "devices": ("devices", _each(_DEVICE_REQUEST)),
    "bundle": ("bundle", _same), "constraint": ("constraint", _CONSTRAINT),
    "prefers": ("prefers", _each(_PREFERENCE)), "ports": ("ports", _NAMES),
    "attach": ("attach", _pairs), "labels": ("labels", _pairs),
    "affinities": ("affinities", _each(_AFFINITY)), "spreads": ("spreads", _each(_SPREAD)),
})  # fmt: skip
_TOPOLOGY = Form(types.Topology, {"level": ("level", _same), "required": ("required", _same)})


def _no_kin(value: Any) -> Any:
    return None if value == "foreign" else value


_WORKLOAD = Form(types.Workload, {
    "key": ("key", _same), "queue": ("queue", _same), "roles": ("roles", _each(_shared(_ROLE))),
    "submitted": ("submitted", _same), "user": ("user", _same), "namespace": ("namespace", _same),
    "priority": ("priority", _same), "gang": ("gang", _same), "pack": ("pack", _same),
    "topology": ("topology", _TOPOLOGY), "preemptible": ("preemptible", _same),
    "preempts": ("preempts", _same), "expected": ("expected", _same),
    "maxRuntime": ("max_runtime", _same), "grace": ("grace", _same),
    "attained": ("attained", _same), "preemptions": ("preemptions", _same),
    "similarTo": ("history_key", _no_kin), "notBefore": ("not_before", _same),
    "held": ("hold_reason", _reason),
    "lately": ("lately", _reason), "movable": ("movable", _same), "moved": ("moved", _pairs),
})  # fmt: skip
_GRANT = Form(types.Grant, {
    "device": ("device", _same), "form": ("form", _same), "compute": ("compute", _same),
    "memory": ("memory", _same), "ratio": ("ratio", _same), "profile": ("profile", _same),
    "start": ("start", _same),
})  # fmt: skip
_MEMBER = Form(types.PodAssignment, {
    "role": ("role", _same), "index": ("index", _same), "node": ("node", _same),
    "grants": ("grants", _each(_GRANT)),
})  # fmt: skip
_MEMBERS = _each(_MEMBER)
_RUNNING = Form(types.Running, {
    "workload": ("workload", _WORKLOAD), "members": ("pods", _MEMBERS),
    "started": ("started", _same), "expectedEnd": ("expected_end", _same),
    "protectedUntil": ("protected_until", _same), "checkpointAt": ("checkpoint_at", _same),
    "leaving": ("leaving", _pairs), "shrunkAt": ("shrunk_at", _same),
})  # fmt: skip
_NOMINATION = Form(
    types.Nomination, {"workload": ("workload", _same), "members": ("pods", _MEMBERS)}
)
_RESERVATION = Form(types.ReservationRecord, {
    "workload": ("workload", _same), "start": ("start", _same), "members": ("pods", _MEMBERS),
    "firm": ("firm", _same), "made": ("made", _same),
})  # fmt: skip
_USER_FIELDS = {
    "resources": ("resources", _same), "running": ("running", _same),
    "submitted": ("submitted", _same),
}  # fmt: skip
_USER_LIMIT = Form(types.UserLimit, _USER_FIELDS)


def _by_user(value: Document) -> dict[str, Any]:
    return {user: _USER_LIMIT(each) for user, each in value.items()}


_USER_LIMITS = Form(types.UserLimits, {**_USER_FIELDS, "users": ("users", _by_user)})
_QUEUE = Form(types.Queue, {
    "name": ("name", _same), "parent": ("parent", _same), "guarantee": ("guarantee", _same),
    "limit": ("limit", _same), "lend": ("lend", _same), "weight": ("weight", _same),
    "order": ("order", _same), "strict": ("strict", _same), "reserve": ("reserve", _same),
    "minRuntime": ("min_runtime", _same), "maxPriority": ("max_priority", _same),
    "halfLife": ("half_life", _same), "fairSharePreemption": ("fair_share_preemption", _same),
    "userFair": ("user_fair", _same), "userLimits": ("user_limits", _USER_LIMITS),
    "held": ("paused", _reason), "namespaces": ("namespaces", frozenset),
})  # fmt: skip
_ACCOUNT = Form(types.Account, {
    "queue": ("queue", _same), "user": ("user", _same), "excess": ("excess", _same),
    "usage": ("usage", _same),
})  # fmt: skip
_QUOTA = Form(types.Quota, {
    "namespace": ("namespace", _same), "name": ("name", _same), "hard": ("hard", _same),
})  # fmt: skip
_WINDOW = Form(types.AdvanceReservation, {
    "name": ("name", _same), "start": ("start", _same), "end": ("end", _same),
    "nodes": ("nodes", frozenset), "selector": ("selector", _pairs), "amounts": ("amounts", _same),
    "queues": ("queues", frozenset), "namespaces": ("namespaces", frozenset),
    "users": ("users", frozenset),
})  # fmt: skip
_WORLD = Form(types.ClusterFacts, {
    "nodes": ("nodes", _each(_NODE)), "queues": ("queues", _each(_QUEUE)),
    "running": ("running", _each(_RUNNING)), "waiting": ("waiting", _each(_WORKLOAD)),
    "nominations": ("nominations", _each(_NOMINATION)),
    "reservations": ("reservations", _each(_RESERVATION)), "levels": ("levels", _NAMES),
    "quotas": ("quotas", _each(_QUOTA)), "accounts": ("accounts", _each(_ACCOUNT)),
    "accountedAt": ("accounted_at", _same), "windows": ("advance", _each(_WINDOW)),
})  # fmt: skip
_POLICY = Form(types.Policy, {
    "operations": ("operations", _same), "reclaim": ("reclaim", _same),
    "preempt": ("preempt", _same), "grow": ("grow", _same),
    "unknownRuntime": ("unknown_runtime", _same), "defragment": ("defragment", _same),
    "moveLoses": ("move_loses", _same), "moveEvery": ("move_every", _same),
    "moves": ("moves", _same), "growthPause": ("growth_pause", _same),
    "reservations": ("reservations", _same),
})  # fmt: skip

_EVENTS: Mapping[str, Callable[..., Any]] = {
    "node": lambda value: snapshot.NodePut(_NODE(value)),
    "nodeGone": snapshot.NodeGone,
    "queue": lambda value: snapshot.QueuePut(_QUEUE(value)),
    "queueGone": snapshot.QueueGone,
    "quotas": lambda value: snapshot.QuotasPut(_each(_QUOTA)(value)),
    "windows": lambda value: snapshot.AdvancePut(_each(_WINDOW)(value)),
    "waits": lambda value: snapshot.WaitingPut(_WORKLOAD(value)),
    "holds": lambda value: snapshot.RunningPut(_RUNNING(value)),
    "saved": lambda value: snapshot.CheckpointSaved(*value),
    "gone": lambda value: snapshot.WorkloadGone(*value),
    "nominated": lambda value: snapshot.Nominated(_NOMINATION(value)),
    "nominationGone": snapshot.NominationGone,
    "reserved": lambda value: snapshot.ReservationsPut(_each(_RESERVATION)(value)),
    "elapsed": snapshot.Elapsed,
    "accounts": lambda value: snapshot.AccountsPut(_each(_ACCOUNT)(value[0]), value[1]),
}
"""What can happen, by the first part of an event: `["gone", ["train", 600.0]]`."""


class Core:
    """The scheduling core behind documents: a snapshot that events change, and decisions on it."""

    def __init__(self, world: Document, policy: Document) -> None:
        self._snapshot = snapshot.build(_WORLD(world))
        self._policy = _POLICY(policy)

    def apply(self, events: Iterable[tuple[str, Any]]) -> None:
        snapshot.apply(self._snapshot, [_EVENTS[kind](value) for kind, value in events])

    def decide(self, now: float) -> Answer:
        decision = cycle.decide(self._snapshot, now, self._policy)
        return document(decision), _traits(self._snapshot, decision)


# --- scenarios of the simulator -------------------------------------------------------------------


def play(path: Path, variant: Document) -> Iterator[tuple[float, Answer]]:
    """Every decision of a scenario that the simulator reads, with its moment. The variant names an
    `order`, a `backfill`, whether to `preempt`, a `pack` and how well `runtimes` are known."""
    played = scenario.with_runtimes(yaml_scenario.read(path), variant.get("runtimes", "as-given"))
    chosen = policy_grid.Variant(
        variant.get("order"), variant.get("backfill"), variant.get("preempt"), variant.get("pack")
    )
    recorder = _Recorder()
    simulation = engine.Simulation(played, chosen, recorder)
    while simulation.step():
        yield from recorder.taken()
    yield from recorder.taken()


class _Recorder:
    """Is shown every decision that the simulator makes, before it is carried out."""

    def __init__(self) -> None:
        self._made: list[tuple[float, Answer]] = []

    def taken(self) -> list[tuple[float, Answer]]:
        made, self._made = self._made, []
        return made

    def before(self, snapshot: snapshot.Snapshot, decision: types.Decision, now: float) -> None:
        self._made.append((now, (document(decision), _traits(snapshot, decision))))

    def after(self, snapshot: snapshot.Snapshot, decision: types.Decision, now: float) -> None:
        """What follows from a decision is in the next one."""

    def started(self, record: object, now: float) -> None:
        """A start is in the placements."""

    def idle(self, decision: types.Decision, now: float) -> None:
        """The simulator carries none of these out: they only show that it may skip them."""
        self._made.append((now, (document(decision), ["skipped by the simulator"])))


# --- decisions into documents ---------------------------------------------------------------------


def document(decision: types.Decision) -> dict[str, Any]:
    """All that the core decided, in its order. Only the messages of verdicts are left out."""
    return {
        "placements": [
            {"workload": each.workload, "members": _members(each.pods)}
            for each in decision.placements
        ],
        "evictions": [
            {
                "workload": each.workload,
                "members": [list(member) for member in each.pods],
                "for": each.preemptor,
                "reason": each.reason,
                "move": each.move,
                "window": each.reservation,
            }
            for each in decision.evictions
        ],
        "nominations": [
            {"workload": each.workload, "members": _members(each.pods)}
            for each in decision.nominations
        ],
        "reservations": [
            {
                "workload": each.workload,
                "start": each.start,
                "firm": each.firm,
                "made": each.made,
                "members": _members(each.pods),
            }
            for each in decision.reservations
        ],
        "withdrawals": [
            {"workload": each.workload, "start": each.start, "reason": each.reason}
            for each in decision.withdrawals
        ],
        "wanted": [
            {"node": each.node, "workloads": list(each.workloads)} for each in decision.wanted
        ],
        "verdicts": [
            {
                "workload": each.workload,
                "reason": str(each.reason.value),
                "resource": each.resource,
                "deficit": each.deficit,
                "queue": each.queue,
                "resolved": each.resolved,
                "user": each.user,
            }
            for each in decision.verdicts
        ],
        "wakeAt": decision.wake_at,
        "operations": decision.operations,
    }


def _members(pods: Iterable[types.PodAssignment]) -> list[dict[str, Any]]:
    return [
        {
            "role": pod.role, "index": pod.index, "node": pod.node,
            "grants": [
                {
                    "device": grant.device, "form": grant.form, "compute": grant.compute,
                    "memory": grant.memory, "ratio": grant.ratio, "profile": grant.profile,
                    "start": grant.start,
                }
                for grant in pod.grants
            ],
        }
        for pod in pods
    ]  # fmt: skip


def _traits(snapshot: snapshot.Snapshot, decision: types.Decision) -> list[str]:
    """What kinds of content the decision has, for the counts that a recording ends with."""
    found: set[str] = set()
    for placement in decision.placements:
        found |= _traits_of_placement(snapshot, placement)
    for eviction in decision.evictions:
        found |= _traits_of_eviction(snapshot, eviction)
    found |= {"nomination"} if decision.nominations else set()
    found |= {"firm reservation" if each.firm else "tentative reservation"
              for each in decision.reservations}  # fmt: skip
    found |= {"withdrawal"} if decision.withdrawals else set()
    found |= {"wanted nodes"} if decision.wanted else set()
    found |= {f"verdict {each.reason.value}" for each in decision.verdicts}
    found |= {"limit of a user" for each in decision.verdicts if each.user is not None}
    found |= {"search budget used up" for each in decision.verdicts if not each.resolved}
    return sorted(found)


def _traits_of_placement(snapshot: snapshot.Snapshot, placement: types.Placement) -> set[str]:
    known = snapshot.running.get(placement.workload)
    workload = snapshot.waiting[placement.workload] if known is None else known.workload
    found = {"start" if known is None else "growth"}
    if known is not None:
        for role in workload.roles:
            present = sum(pod.role == role.name for pod in known.pods)
            found |= {"repair"} if workload.gang and present < role.min_count else set()
    if "repair" in found:
        found.remove("growth")
    found |= {"gang"} if workload.gang and len(placement.pods) > 1 else set()
    found |= {"required topology" for near in (workload.topology,) if near and near.required}
    found |= {"nominated start"} if placement.workload in snapshot.nominations else set()
    for role in workload.roles:
        found |= {f"bundle {role.bundle}"} if role.bundle else set()
        found |= {"affinity"} if role.affinities else set()
        found |= {"spread"} if role.spreads else set()
        found |= {"host ports"} if role.ports else set()
    return found | {
        f"{grant.form} device" for pod in placement.pods for grant in pod.grants
    }  # fmt: skip


def _traits_of_eviction(snapshot: snapshot.Snapshot, eviction: types.Eviction) -> set[str]:
    known = snapshot.running[eviction.workload]
    found = {"eviction"}
    found |= {"shrink"} if len(eviction.pods) < len(known.pods) else set()
    if eviction.move:
        return found | {"defragmentation"}
    if eviction.reservation:
        return found | {"cleared for a window"}
    preemptor = snapshot.waiting.get(eviction.preemptor)
    if preemptor is None:
        return found | {"eviction for a running workload"}
    same = preemptor.queue == known.workload.queue
    return found | {"preemption in the queue" if same else "reclaim"}
