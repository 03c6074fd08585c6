"""Which models of devices a unit may be given: what it accepts, less what its queue may not use.

Quotas can name a model (`gpu/h100`). A unit that accepts several, or any, is narrowed to those of
which its queue may use all that it asks for, before anybody looks for room; so wherever room is
found or made for it, no rule about a model is broken.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.core import amounts, place
from windlass.core.cluster import Cluster
from windlass.core.facts import DeviceRequest, Unit
from windlass.core.place import Wish
from windlass.core.queues import Shortage, Tree


def permitted(cluster: Cluster, tree: Tree, unit: Unit) -> Unit | Shortage:
    """The unit with only those models that it may have; or the rule that leaves none."""
    asked = unit
    for resource in tree.rules_on_models(unit.queue):
        need = most_of(cluster, place.least_of(asked), resource)
        shortage = need and tree.shortage(unit.queue, {resource: need}, firm=not unit.preemptible)
        if shortage:
            narrower = without(asked, resource, tree.capacity)
            if narrower is None:
                return shortage
            asked = narrower
    return asked


def in_turn(unit: Unit) -> tuple[str, ...]:
    """Acceptable models to try alone, best first, and at last any mix of them ("")."""
    for role in unit.roles:
        for request in role.devices:
            if len(request.models) > 1:
                return (*request.models, "")
    return ("",)


def without(unit: Unit, resource: str, known: Iterable[str]) -> Unit | None:
    """The unit if it did not accept the model of `kind/model`; None: it accepts no other."""
    kind, _, model = resource.partition("/")
    models = tuple(sorted(n.partition("/")[2] for n in known if n.startswith(f"{kind}/")))
    roles = []
    for role in unit.roles:
        requests = []
        for request in role.devices:
            accepted = request.models or models
            if request.kind == kind and model in accepted:
                accepted = tuple(each for each in accepted if each != model)
                if not accepted:
                    return None
                requests.append(dataclasses.replace(request, models=accepted))
            else:
                requests.append(request)
        roles.append(dataclasses.replace(role, devices=tuple(requests)))
    return dataclasses.replace(unit, roles=tuple(roles))


def most_of(cluster: Cluster, wishes: Iterable[Wish], resource: str) -> int:
    """What these would count for if every device that may be of the model were."""
    kind, _, model = resource.partition("/")

    def part(request: DeviceRequest) -> int:
        could = request.kind == kind and (not request.models or model in request.models)
        return amounts.charge(cluster, request) if could else 0

    return sum(part(request) * wish.count for wish in wishes for request in wish.role.devices)
