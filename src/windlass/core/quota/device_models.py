"""Which models of devices a workload may be given: what it accepts, less what its queue may not
use.

Quotas can name a model (`gpu/h100`). A workload that accepts several, or any, is narrowed to those
of which its queue may use all that it asks for, before placement; so no placement or preemption for
it can exceed the quota of a model.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from windlass.core.cluster.cluster import Cluster
from windlass.core.model import pod_sets
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import DeviceRequest, Workload
from windlass.core.quota import usage
from windlass.core.quota.quota_tree import QuotaTree, Shortage


def permitted(cluster: Cluster, tree: QuotaTree, workload: Workload) -> Workload | Shortage:
    """The workload with only those models that it may have; or the rule that leaves none."""
    asked = workload
    for resource in tree.limited_models(workload.queue):
        need = most_of(cluster, pod_sets.minimum(asked), resource)
        shortage = need and tree.shortage(
            workload.queue, {resource: need}, non_preemptible=not workload.preemptible
        )
        if shortage:
            narrower = without(asked, resource, tree.capacity)
            if narrower is None:
                return shortage
            asked = narrower
    return asked


def in_turn(workload: Workload) -> tuple[str, ...]:
    """Acceptable models to try alone, best first, and at last any mix of them ("")."""
    for role in workload.roles:
        for request in role.devices:
            if len(request.models) > 1:
                return (*request.models, "")
    return ("",)


def without(workload: Workload, resource: str, known: Iterable[str]) -> Workload | None:
    """The workload if it did not accept the model of `kind/model`; None: it accepts no other."""
    kind, _, model = resource.partition("/")
    models = tuple(sorted(n.partition("/")[2] for n in known if n.startswith(f"{kind}/")))
    roles = []
    for role in workload.roles:
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
    return dataclasses.replace(workload, roles=tuple(roles))


def most_of(cluster: Cluster, requests: Iterable[PodSetRequest], resource: str) -> int:
    """What these would count for if every device that may be of the model were."""
    kind, _, model = resource.partition("/")

    def part(request: DeviceRequest) -> int:
        could = request.kind == kind and (not request.models or model in request.models)
        return usage.charge(cluster, request) if could else 0

    return sum(
        part(request) * pod_set.count for pod_set in requests for request in pod_set.role.devices
    )
