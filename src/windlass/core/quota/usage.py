"""What pods count for in quotas: cpu, memory, and devices by kind and by model.

A share counts by its dominant part: a quarter of the memory with a tenth of the compute is a
quarter of a device. Thousandths, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from windlass.core.cluster.cluster import Cluster
from windlass.core.model.pod_sets import PodSetRequest
from windlass.core.model.types import WHOLE, DeviceRequest, PodAssignment, Role
from windlass.core.quota.quota_tree import Sums


def of_requests(cluster: Cluster, requests: Iterable[PodSetRequest]) -> Sums:
    """Before anything is placed: the model counts only where just one is acceptable."""
    sums: Sums = {}
    for pod_set in requests:
        for name, amount in pod_set.role.needs.items():
            sums[name] = sums.get(name, 0) + amount * pod_set.count
        for request in pod_set.role.devices:
            part = charge(cluster, request) * pod_set.count
            sums[request.kind] = sums.get(request.kind, 0) + part
            if len(request.models) == 1:
                name = f"{request.kind}/{request.models[0]}"
                sums[name] = sums.get(name, 0) + part
    return sums


def of_pods(cluster: Cluster, roles: Iterable[Role], pods: Sequence[PodAssignment]) -> Sums:
    """What placed pods hold, with the models they were really given."""
    sums: Sums = {}
    for role in roles:
        own = [pod for pod in pods if pod.role == role.name]
        if not own:
            continue
        for name, amount in role.needs.items():
            sums[name] = sums.get(name, 0) + amount * len(own)
        for request in role.devices:
            kind, part = request.kind, charge(cluster, request)
            sums[kind] = sums.get(kind, 0) + part * len(own)
            for pod in own:
                model = _model(cluster, pod, kind)
                if model:
                    name = f"{kind}/{model}"
                    sums[name] = sums.get(name, 0) + part
    return sums


def charge(cluster: Cluster, request: DeviceRequest) -> int:
    """Thousandths of a device that one pod's request counts for."""
    known = cluster.charges.get(request)
    if known is None:
        known = cluster.charges[request] = _charge(cluster, request)
    return known


def _charge(cluster: Cluster, request: DeviceRequest) -> int:
    if request.form == "whole":
        return WHOLE * request.count
    if request.form == "ratio":
        return -(-WHOLE // request.ratio)
    bank = cluster.device_table
    eligible = bank.eligible(request)
    if request.form == "partition":
        where = np.argwhere(eligible)
        profiles = bank.devices[where[0][0]][where[0][1]].profiles if len(where) else ()
        return next((p.compute for p in profiles if p.name == request.profile), WHOLE)
    memory = bank.full[1][eligible]
    smallest = int(memory.min()) if len(memory) else 0
    by_memory = -(-request.memory * WHOLE // smallest) if smallest else 0
    return max(request.compute, by_memory)


def _model(cluster: Cluster, pod: PodAssignment, kind: str) -> str:
    node = cluster.index.get(pod.node)
    if node is None:
        return ""
    place, devices = cluster.device_table.place[node], cluster.device_table.devices[node]
    for grant in pod.grants:
        j = place.get(grant.device)
        if j is not None and devices[j].kind == kind:
            return str(devices[j].model)
    return ""
