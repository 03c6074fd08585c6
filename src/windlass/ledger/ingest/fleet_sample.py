"""One sample of the fleet: what exists, is allocated, used, lent and requested now. Pure.

By device model and by team. Amounts are thousandths of devices; `cpu` stands beside `machine` for
cores, because queues and waiting runs count cores and not machines. Requests and lending of a kind
without a model count for the model if the fleet has only one, else for the kind.
"""

from __future__ import annotations

import fractions
from collections import Counter
from collections.abc import Iterable, Mapping

from windlass.control.convert import run_workloads
from windlass.control.model import members
from windlass.kinds.types import core, queue
from windlass.kinds.types.run import Device, Role, Run
from windlass.kinds.values import quantity
from windlass.ledger.ingest.extract import Node
from windlass.ledger.ingest.utilization import Measured, Use
from windlass.ledger.model import (
    ALL,
    CPU,
    MACHINE,
    WHOLE,
    FleetSample,
    Hold,
    QueueAmounts,
    device_name,
)

_NOT_DEVICES = frozenset({"memory", "pods"})
_UNIT = 1000
_PART = WHOLE // _UNIT


def sample(
    nodes: Mapping[str, Node],
    pods: Iterable[core.Pod],
    holds: Iterable[Hold],
    queues: Iterable[queue.Queue],
    runs: Iterable[Run],
    measured: Measured,
) -> FleetSample:
    found = FleetSample()
    found.of(ALL, CPU)  # every sample has this cell: it marks the time as observed
    _there(found, nodes, measured)
    _add_allocated(found, nodes, list(holds), measured)
    _worked(found, nodes, pods, measured)
    listed = list(queues)
    names = _only_models(nodes)
    _share(found, listed, names)
    _wait(found, listed, runs, names, nodes)
    return found


# --- presence, allocation and activity ------------------------------------------------------------


def _there(found: FleetSample, nodes: Mapping[str, Node], measured: Measured) -> None:
    for node in nodes.values():
        use = measured.nodes.get(node.name)
        cores = found.of(ALL, CPU)
        cores.present += node.cpu
        if use is not None:
            cores.measured += node.cpu
            cores.used += use.cpu
        for device in node.devices.values():
            cell = found.of(ALL, device_name(device.kind, device.model))
            cell.present += _UNIT
            active = _activity(node, device.name, use)
            if active is not None:
                cell.measured += _UNIT
                cell.used += active


def _activity(node: Node, device: str, use: Use | None) -> int | None:
    """Thousandths of a device that were active; None if it is not measured."""
    if use is None:
        return None
    if device == MACHINE:
        return _dominant(use, node)
    # Agents count the devices of a kind, whatever their resource: nvidia.com/gpu/0 is gpu/0.
    known = node.devices.get(device)
    return use.devices.get(f"{known.kind}/{device.rpartition('/')[2]}") if known else None


def _dominant(use: Use, node: Node) -> int:
    """The larger part of the node's processors and memory, as for allocations."""
    parts = [(use.cpu, node.cpu), (use.memory, node.memory)]
    return max(min(_UNIT, _UNIT * amount // of) if of > 0 else 0 for amount, of in parts)


def _add_allocated(
    found: FleetSample, nodes: Mapping[str, Node], holds: list[Hold], measured: Measured
) -> None:
    by_device: dict[tuple[str, str], list[Hold]] = {}
    for hold in holds:
        by_device.setdefault((hold.device.node, hold.device.name), []).append(hold)
    taken = Counter((place, found[0].device.kind) for (place, _), found in by_device.items())
    for (place, device), sharers in by_device.items():
        node, use = nodes.get(place), measured.nodes.get(place)
        name = device_name(sharers[0].device.kind, sharers[0].device.model)
        whole = sum(hold.part for hold in sharers)
        found.of(ALL, name).held += min(WHOLE, whole) // _PART
        active = _activity(node, device, use) if node is not None else None
        if measured.nodes_choose and active is not None and device != MACHINE:
            active = _shared_out(use, sharers[0].device.kind, taken[place, sharers[0].device.kind])
        for hold in sharers:
            cell = found.of(hold.party.team, name)
            cell.held += hold.part // _PART
            if active is not None:
                cell.measured += hold.part // _PART
                # Drivers measure devices, not their sharers; machines are measured by pod
                # (`_worked`).
                cell.used += active * hold.part // whole if device != MACHINE and whole else 0
            if device == MACHINE:
                for cores in found.both(hold.party.team, CPU):
                    cores.held += hold.cpu
                found.of(hold.party.team, CPU).measured += hold.cpu if use is not None else 0


def _shared_out(use: Use | None, kind: str, holders: int) -> int:
    """If the owners of single devices are unknown: the activity of the node, divided equally."""
    reported = use.devices.items() if use else ()
    worked = sum(part for name, part in reported if name.rpartition("/")[0] == kind)
    return min(_UNIT, worked // holders)


def _worked(
    found: FleetSample, nodes: Mapping[str, Node], pods: Iterable[core.Pod], measured: Measured
) -> None:
    """The usage of machines by pods counts for their teams."""
    for pod in pods:
        use, node = measured.pods.get((pod.namespace, pod.name)), nodes.get(pod.spec.node_name)
        own = use is not None and use.node in ("", pod.spec.node_name)
        if own and use is not None and node is not None and node.name in measured.nodes:
            found.of(pod.namespace, CPU).used += use.cpu
            found.of(pod.namespace, MACHINE).used += _dominant(use, node)


# --- the quota tree and the demand ----------------------------------------------------------------


def _only_models(nodes: Mapping[str, Node]) -> dict[str, str]:
    """Kind -> the device of that kind, if there is only one model of it."""
    models: dict[str, set[str]] = {}
    for node in nodes.values():
        for device in node.devices.values():
            name = device_name(device.kind, device.model)
            models.setdefault(device.kind, set()).add(name)
    return {kind: next(iter(names)) for kind, names in models.items() if len(names) == 1}


def _share(found: FleetSample, queues: list[queue.Queue], names: Mapping[str, str]) -> None:
    teams = _teams(queues)
    below: dict[str, list[queue.Queue]] = {}
    for each in queues:
        below.setdefault(each.spec.parent or "", []).append(each)
    for each in queues:
        reported = {
            "used": each.status.used, "borrowed": each.status.borrowed, "lent": each.status.lent,
        }  # fmt: skip
        for field, amounts in reported.items():
            for resource, amount in (amounts or {}).items():
                if resource not in _NOT_DEVICES:
                    cell = found.queues.setdefault((each.name, resource), QueueAmounts())
                    setattr(cell, field, quantity.milli(amount))
        for field in ("borrowed", "lent"):
            _own(found, field, each, below.get(each.name, []), teams.get(each.name, ALL), names)


def _own(
    found: FleetSample, field: str, each: queue.Queue, below: list[queue.Queue], team: str,
    names: Mapping[str, str],
) -> None:  # fmt: skip
    """What a queue lends or borrows itself, without its children."""
    mine = _read(getattr(each.status, field))
    for child in below:
        for resource, amount in _read(getattr(child.status, field)).items():
            mine[resource] = mine.get(resource, 0) - amount
    for resource, amount in mine.items():
        # The amount of a kind includes its models, which have amounts of their own.
        models = [name for name in mine if name.startswith(f"{resource}/")]
        rest = amount - sum(max(0, mine[name]) for name in models)
        if rest > 0:
            for cell in found.both(team, names.get(resource, resource)):
                setattr(cell, field, getattr(cell, field) + rest)


def _read(amounts: Mapping[str, str] | None) -> dict[str, int]:
    return {
        name: quantity.milli(amount)
        for name, amount in (amounts or {}).items()
        if name not in _NOT_DEVICES
    }


def _teams(queues: list[queue.Queue]) -> dict[str, str]:
    """Queue -> its only team."""
    owned: dict[str, list[str]] = {}
    for namespace, name in run_workloads.homes(queues).items():
        owned.setdefault(name, []).append(namespace)
    return {name: teams[0] for name, teams in owned.items() if len(teams) == 1}


def _wait(
    found: FleetSample, queues: list[queue.Queue], runs: Iterable[Run], names: Mapping[str, str],
    nodes: Mapping[str, Node],
) -> None:  # fmt: skip
    owners = run_workloads.homes(queues)
    memory: dict[str, int] = {}
    for node in nodes.values():
        for kind, amount in node.device_memory.items():
            memory[kind] = min(amount, memory.get(kind, amount))
    for owner in runs:
        if not run_workloads.waits(owner) or owner.spec.suspend:
            continue
        home = run_workloads.queue_of(owner, owners)
        for role in owner.spec.roles:
            for resource, device, amount in _requests(role, names, memory):
                for cell in found.both(owner.namespace, device):
                    cell.waiting += amount * role.replicas
                shared = found.queues.setdefault((home, resource), QueueAmounts())
                shared.waiting += amount * role.replicas


def _requests(
    role: Role, names: Mapping[str, str], memory: Mapping[str, int]
) -> Iterable[tuple[str, str, int]]:
    """The requests of a replica: the name in queues, the name in the fleet, the amount."""
    yield CPU, CPU, members.needs(role)["cpu"]
    for device in role.devices or ():
        kind = device.kind
        models = device.models or []
        name = f"{kind}/{models[0]}" if len(models) == 1 else names.get(kind, kind)
        yield kind, name, _part_of(device, memory.get(kind, 0))


def _part_of(device: Device, memory: int) -> int:
    """Thousandths; for a share the larger of its parts, if the memory size of devices is known."""
    if device.share:
        return -(-_UNIT * fractions.Fraction(device.share) // 1)
    by_memory = 0
    if device.memory and memory:
        by_memory = min(_UNIT, -(-_UNIT * quantity.whole(device.memory) // memory))
    if device.compute or by_memory:
        return max(10 * (device.compute or 0), by_memory)
    return _UNIT * (device.count or 1)
