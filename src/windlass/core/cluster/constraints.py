"""Whether a node is acceptable at all (selector, affinity, taints, volumes, capabilities), and how
much it is preferred. Pure."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Mapping

from windlass.core.model.types import (
    Constraint,
    Node,
    Preference,
    Requirement,
    Storage,
    Toleration,
)

NAME_FIELD = "metadata.name"
CONDITION_TAINTS = (
    "node.kubernetes.io/unschedulable",
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
    "node.kubernetes.io/memory-pressure",
    "node.kubernetes.io/disk-pressure",
    "node.kubernetes.io/pid-pressure",
    "node.kubernetes.io/network-unavailable",
    "node.kubernetes.io/out-of-service",
    "node.cloudprovider.kubernetes.io/uninitialized",
    "node.cloudprovider.kubernetes.io/shutdown",
)
"""Taints that Kubernetes sets by the condition of a node, and removes again: such a node is closed
now, but what it could hold is not lost."""
_CONDITIONS = tuple(Toleration(key, "Exists") for key in CONDITION_TAINTS)


@functools.lru_cache(maxsize=4096)
def lasting(constraint: Constraint) -> Constraint:
    """The constraint as it is on nodes in good condition: it ignores taints that come and go."""
    return dataclasses.replace(constraint, tolerations=(*constraint.tolerations, *_CONDITIONS))


def feasible(constraint: Constraint, node: Node) -> bool:
    """Whether a node satisfies a constraint. Considers what the node is, not what is free on it."""
    if not constraint.capabilities <= node.capabilities:
        return False
    if constraint.names is not None and node.name not in constraint.names:
        return False
    if any(node.labels.get(key) != value for key, value in constraint.selector):
        return False
    facts = {**node.labels, NAME_FIELD: node.name}
    if constraint.affinity and not _any_of(constraint.affinity, facts):
        return False
    if not all(_any_of(terms, facts) for terms in constraint.volumes):
        return False
    if constraint.storage and supply(constraint.storage, node) is None:
        return False
    return all(
        taint.effect == "PreferNoSchedule"
        or any(toleration.accepts(taint) for toleration in constraint.tolerations)
        for taint in node.taints
    )


def supply(storage: Iterable[Storage], node: Node) -> list[str] | None:
    """For each volume that is not bound yet, the volume that a pod on this node would get; "": one
    is provisioned. None: there are not enough volumes. Like Kubernetes, the first claim takes the
    best volume that is left, even if nothing remains for the next."""
    facts = {**node.labels, NAME_FIELD: node.name}
    found: list[str] = []
    for each in storage:
        reached = (
            name
            for name, terms in each.among
            if name not in found and (terms is None or _any_of(terms, facts))
        )
        name = next(reached, "")
        if not name and not (
            each.made is not None and all(_any_of(terms, facts) for terms in each.made)
        ):
            return None
        found.append(name)
    return found


def preference_score(preferences: Iterable[Preference], node: Node) -> int:
    """How much a pod would rather be on this node than on one that matches nothing."""
    facts = {**node.labels, NAME_FIELD: node.name}
    return sum(p.weight for p in preferences if all(holds(r, facts) for r in p.match))


def _any_of(terms: Iterable[tuple[Requirement, ...]], labels: Mapping[str, str]) -> bool:
    """As Kubernetes reads terms: any of them, all conditions of a term, and one that has no
    condition matches nothing."""
    return any(term and all(holds(each, labels) for each in term) for term in terms)


def holds(requirement: Requirement, labels: Mapping[str, str]) -> bool:
    """One condition on labels, as Kubernetes reads it."""
    value = labels.get(requirement.key)
    operator = requirement.operator
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    if operator == "In":
        return value in requirement.values
    if operator == "NotIn":
        return value not in requirement.values
    if operator in ("Gt", "Lt"):
        return _compares(operator, value, requirement.values)
    return False


def _compares(operator: str, value: str | None, bounds: tuple[str, ...]) -> bool:
    if value is None or not bounds or not (_is_number(value) and _is_number(bounds[0])):
        return False
    number, bound = int(value), int(bounds[0])
    return number > bound if operator == "Gt" else number < bound


def _is_number(text: str) -> bool:
    """A whole number of 64 bits in plain digits, as Kubernetes reads it."""
    digits = text[1:] if text[:1] in ("+", "-") else text
    return digits.isascii() and digits.isdecimal() and -(1 << 63) <= int(text) < 1 << 63
