"""What members count for in quotas: cpu, memory, and devices by kind and by model.

A share counts by its dominant part: a quarter of the memory with a tenth of the compute is a
quarter of a device. Thousandths, rounded up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from windlass.core.cluster import Cluster
from windlass.core.facts import WHOLE, DeviceRequest, Role, Seat
from windlass.core.place import Wish
from windlass.core.queues import Sums


def of_wishes(cluster: Cluster, wishes: Iterable[Wish]) -> Sums:
    """Before anything is placed: the model counts only where just one is acceptable."""
    sums: Sums = {}
    for wish in wishes:
        for name, amount in wish.role.needs.items():
            sums[name] = sums.get(name, 0) + amount * wish.count
        for request in wish.role.devices:
            part = charge(cluster, request) * wish.count
            sums[request.kind] = sums.get(request.kind, 0) + part
            if len(request.models) == 1:
                name = f"{request.kind}/{request.models[0]}"
                sums[name] = sums.get(name, 0) + part
    return sums


def of_seats(cluster: Cluster, roles: Iterable[Role], seats: Sequence[Seat]) -> Sums:
    """What placed members hold, with the models they were really given."""
    sums: Sums = {}
    for role in roles:
        own = [seat for seat in seats if seat.role == role.name]
        if not own:
            continue
        for name, amount in role.needs.items():
            sums[name] = sums.get(name, 0) + amount * len(own)
        for request in role.devices:
            kind, part = request.kind, charge(cluster, request)
            sums[kind] = sums.get(kind, 0) + part * len(own)
            for seat in own:
                model = _model(cluster, seat, kind)
                if model:
                    name = f"{kind}/{model}"
                    sums[name] = sums.get(name, 0) + part
    return sums


def charge(cluster: Cluster, request: DeviceRequest) -> int:
    """Thousandths of a device that one member's request counts for."""
    known = cluster.charges.get(request)
    if known is None:
        known = cluster.charges[request] = _charge(cluster, request)
    return known


def _charge(cluster: Cluster, request: DeviceRequest) -> int:
    if request.form == "whole":
        return WHOLE * request.count
    if request.form == "ratio":
        return -(-WHOLE // request.ratio)
    bank = cluster.bank
    eligible = bank.eligible(request)
    if request.form == "partition":
        where = np.argwhere(eligible)
        profiles = bank.devices[where[0][0]][where[0][1]].profiles if len(where) else ()
        return next((p.compute for p in profiles if p.name == request.profile), WHOLE)
    memory = bank.full[1][eligible]
    smallest = int(memory.min()) if len(memory) else 0
    by_memory = -(-request.memory * WHOLE // smallest) if smallest else 0
    return max(request.compute, by_memory)


def _model(cluster: Cluster, seat: Seat, kind: str) -> str:
    node = cluster.index.get(seat.node)
    if node is None:
        return ""
    place, devices = cluster.bank.place[node], cluster.bank.devices[node]
    for grant in seat.grants:
        j = place.get(grant.device)
        if j is not None and devices[j].kind == kind:
            return str(devices[j].model)
    return ""
