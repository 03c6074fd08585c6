"""One look at the fleet: what is there, held, used, lent and waited for right now. Pure.

By device model and by team. Amounts are thousandths of devices; `cpu` stands beside `machine` for
cores, because queues and runs that wait count cores and not machines. What is asked for or lent of
a kind, whatever the model, counts for the model where the fleet has only one, else for the kind.
"""

from __future__ import annotations

import dataclasses
import fractions
from collections import Counter
from collections.abc import Iterable, Mapping

from windlass.control import members, snapshots
from windlass.kinds import kubernetes, quantity, queue
from windlass.kinds.run import Device, Role, Run
from windlass.ledger import reports
from windlass.ledger.activity import Measured, Use
from windlass.ledger.facts import MACHINE, WHOLE, Hold
from windlass.ledger.reading import Node

CPU = "cpu"
ALL = ""
"""Instead of a team: the whole fleet."""
_NOT_DEVICES = frozenset({"memory", "pods"})
_UNIT = 1000
_PART = WHOLE // _UNIT


@dataclasses.dataclass(slots=True)
class Shared:
    """What a queue holds, by its own status, and what waits in it."""

    used: int = 0
    borrowed: int = 0
    lent: int = 0
    waiting: int = 0


@dataclasses.dataclass(slots=True)
class Amounts(Shared):
    """The same of a team or the fleet, where `used` is what worked."""

    present: int = 0
    held: int = 0
    measured: int = 0
    """Of what `used` is a part: devices whose activity somebody measures."""


@dataclasses.dataclass(slots=True)
class Look:
    cells: dict[tuple[str, str], Amounts] = dataclasses.field(default_factory=dict)
    """By team and device."""
    queues: dict[tuple[str, str], Shared] = dataclasses.field(default_factory=dict)
    """By queue and resource."""

    def of(self, team: str, device: str) -> Amounts:
        return self.cells.setdefault((team, device), Amounts())

    def both(self, team: str, device: str) -> tuple[Amounts, ...]:
        """The team's, and the fleet's."""
        return (self.of(team, device), self.of(ALL, device)) if team else (self.of(ALL, device),)


def look(
    nodes: Mapping[str, Node],
    pods: Iterable[kubernetes.Pod],
    holds: Iterable[Hold],
    queues: Iterable[queue.Queue],
    runs: Iterable[Run],
    measured: Measured,
) -> Look:
    found = Look()
    found.of(ALL, CPU)  # there always is one: it tells that somebody looked
    _there(found, nodes, measured)
    _held(found, nodes, list(holds), measured)
    _worked(found, nodes, pods, measured)
    listed = list(queues)
    names = _only_models(nodes)
    _share(found, listed, names)
    _wait(found, listed, runs, names, nodes)
    return found


# --- what is there, and what is done with it ------------------------------------------------------


def _there(found: Look, nodes: Mapping[str, Node], measured: Measured) -> None:
    for node in nodes.values():
        use = measured.nodes.get(node.name)
        cores = found.of(ALL, CPU)
        cores.present += node.cpu
        if use is not None:
            cores.measured += node.cpu
            cores.used += use.cpu
        for device in node.devices.values():
            cell = found.of(ALL, reports.device_name(device.kind, device.model))
            cell.present += _UNIT
            active = _activity(node, device.name, use)
            if active is not None:
                cell.measured += _UNIT
                cell.used += active


def _activity(node: Node, device: str, use: Use | None) -> int | None:
    """Thousandths of a device that worked; None: nobody measures it."""
    if use is None:
        return None
    if device == MACHINE:
        return _dominant(use, node)
    # Agents count a kind's devices, whatever their resource is called: nvidia.com/gpu/0 is gpu/0.
    known = node.devices.get(device)
    return use.devices.get(f"{known.kind}/{device.rpartition('/')[2]}") if known else None


def _dominant(use: Use, node: Node) -> int:
    """The larger part of the node's processors and memory, as what is held is counted."""
    parts = [(use.cpu, node.cpu), (use.memory, node.memory)]
    return max(min(_UNIT, _UNIT * amount // of) if of > 0 else 0 for amount, of in parts)


def _held(found: Look, nodes: Mapping[str, Node], holds: list[Hold], measured: Measured) -> None:
    by_device: dict[tuple[str, str], list[Hold]] = {}
    for hold in holds:
        by_device.setdefault((hold.device.node, hold.device.name), []).append(hold)
    taken = Counter((place, found[0].device.kind) for (place, _), found in by_device.items())
    for (place, device), sharers in by_device.items():
        node, use = nodes.get(place), measured.nodes.get(place)
        name = reports.device_name(sharers[0].device.kind, sharers[0].device.model)
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
                # Drivers tell of devices, not of their sharers; of machines pods tell (`_worked`).
                cell.used += active * hold.part // whole if device != MACHINE and whole else 0
            if device == MACHINE:
                for cores in found.both(hold.party.team, CPU):
                    cores.held += hold.cpu
                found.of(hold.party.team, CPU).measured += hold.cpu if use is not None else 0


def _shared_out(use: Use | None, kind: str, holders: int) -> int:
    """Where nobody knows which device is whose: all that worked on the node, by those who hold."""
    told = use.devices.items() if use else ()
    worked = sum(part for name, part in told if name.rpartition("/")[0] == kind)
    return min(_UNIT, worked // holders)


def _worked(
    found: Look, nodes: Mapping[str, Node], pods: Iterable[kubernetes.Pod], measured: Measured
) -> None:
    """What pods used of machines counts for their teams."""
    for pod in pods:
        use, node = measured.pods.get((pod.namespace, pod.name)), nodes.get(pod.spec.node_name)
        own = use is not None and use.node in ("", pod.spec.node_name)
        if own and use is not None and node is not None and node.name in measured.nodes:
            found.of(pod.namespace, CPU).used += use.cpu
            found.of(pod.namespace, MACHINE).used += _dominant(use, node)


# --- the sharing tree, and who waits --------------------------------------------------------------


def _only_models(nodes: Mapping[str, Node]) -> dict[str, str]:
    """Kind -> the device of that kind, where there is only one model of it."""
    models: dict[str, set[str]] = {}
    for node in nodes.values():
        for device in node.devices.values():
            name = reports.device_name(device.kind, device.model)
            models.setdefault(device.kind, set()).add(name)
    return {kind: next(iter(names)) for kind, names in models.items() if len(names) == 1}


def _share(found: Look, queues: list[queue.Queue], names: Mapping[str, str]) -> None:
    teams = _teams(queues)
    below: dict[str, list[queue.Queue]] = {}
    for each in queues:
        below.setdefault(each.spec.parent or "", []).append(each)
    for each in queues:
        told = {
            "used": each.status.used, "borrowed": each.status.borrowed, "lent": each.status.lent,
        }  # fmt: skip
        for word, amounts in told.items():
            for resource, amount in (amounts or {}).items():
                if resource not in _NOT_DEVICES:
                    cell = found.queues.setdefault((each.name, resource), Shared())
                    setattr(cell, word, quantity.milli(amount))
        for word in ("borrowed", "lent"):
            _own(found, word, each, below.get(each.name, []), teams.get(each.name, ALL), names)


def _own(
    found: Look, word: str, each: queue.Queue, below: list[queue.Queue], team: str,
    names: Mapping[str, str],
) -> None:  # fmt: skip
    """What a queue lends or borrows itself, without what those below it do."""
    mine = _read(getattr(each.status, word))
    for child in below:
        for resource, amount in _read(getattr(child.status, word)).items():
            mine[resource] = mine.get(resource, 0) - amount
    for resource, amount in mine.items():
        # What is told of a kind includes its models, which are told for themselves.
        models = [name for name in mine if name.startswith(f"{resource}/")]
        rest = amount - sum(max(0, mine[name]) for name in models)
        if rest > 0:
            for cell in found.both(team, names.get(resource, resource)):
                setattr(cell, word, getattr(cell, word) + rest)


def _read(amounts: Mapping[str, str] | None) -> dict[str, int]:
    return {
        name: quantity.milli(amount)
        for name, amount in (amounts or {}).items()
        if name not in _NOT_DEVICES
    }


def _teams(queues: list[queue.Queue]) -> dict[str, str]:
    """Queue -> the one team that it is for."""
    owned: dict[str, list[str]] = {}
    for namespace, name in snapshots.homes(queues).items():
        owned.setdefault(name, []).append(namespace)
    return {name: teams[0] for name, teams in owned.items() if len(teams) == 1}


def _wait(
    found: Look, queues: list[queue.Queue], runs: Iterable[Run], names: Mapping[str, str],
    nodes: Mapping[str, Node],
) -> None:  # fmt: skip
    owners = snapshots.homes(queues)
    memory: dict[str, int] = {}
    for node in nodes.values():
        for kind, amount in node.device_memory.items():
            memory[kind] = min(amount, memory.get(kind, amount))
    for owner in runs:
        if not snapshots.waits(owner) or owner.spec.suspend:
            continue
        home = snapshots.queue_of(owner, owners)
        for role in owner.spec.roles:
            for resource, device, amount in _asked(role, names, memory):
                for cell in found.both(owner.namespace, device):
                    cell.waiting += amount * role.replicas
                shared = found.queues.setdefault((home, resource), Shared())
                shared.waiting += amount * role.replicas


def _asked(
    role: Role, names: Mapping[str, str], memory: Mapping[str, int]
) -> Iterable[tuple[str, str, int]]:
    """What a member asks for: as queues name it, as the fleet does, and how much."""
    yield CPU, CPU, members.needs(role)["cpu"]
    for device in role.devices or ():
        kind = device.kind
        models = device.models or []
        name = f"{kind}/{models[0]}" if len(models) == 1 else names.get(kind, kind)
        yield kind, name, _part_of(device, memory.get(kind, 0))


def _part_of(device: Device, memory: int) -> int:
    """Thousandths; of a share the larger of its parts, as far as the fleet tells how large its
    devices are."""
    if device.share:
        return -(-_UNIT * fractions.Fraction(device.share) // 1)
    by_memory = 0
    if device.memory and memory:
        by_memory = min(_UNIT, -(-_UNIT * quantity.whole(device.memory) // memory))
    if device.compute or by_memory:
        return max(10 * (device.compute or 0), by_memory)
    return _UNIT * (device.count or 1)
