"""Whether a node is acceptable at all (selector, affinity, taints, volumes, capabilities), and how
much it is preferred. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from windlass.core.facts import Constraint, Node, Preference, Requirement, Storage

NAME_FIELD = "metadata.name"


def accepts(constraint: Constraint, node: Node) -> bool:
    """Says nothing about room: only about what the node is."""
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
    """For each volume that is still to be had the one that a member on this node would get; "":
    one is made. None: there is not enough for it. Who is sought first takes the best that is left,
    as Kubernetes has it, even if that leaves nothing for the next."""
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


def points(preferences: Iterable[Preference], node: Node) -> int:
    """How much a member would rather be on this node than on one that matches nothing."""
    facts = {**node.labels, NAME_FIELD: node.name}
    return sum(p.points for p in preferences if all(holds(r, facts) for r in p.match))


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
