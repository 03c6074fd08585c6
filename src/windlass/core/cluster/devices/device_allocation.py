"""The specific devices of one node for one pod: best links, tightest fit, least damage.

Called by `devices` with one node's numbers. Pure: it returns what to take and takes nothing.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence

from windlass.core.cluster.devices import partitions
from windlass.core.cluster.devices.partitions import Position
from windlass.core.model.types import WHOLE, Device, DeviceRequest, Grant, Profile

UNLOCKED, SHARED, HELD, PARTITIONED, RATIO = 0, 1, 2, 3, 16
"""Modes of a device; up to SHARED shares of it can be had; RATIO + k means 1:k."""
ANY_DEVICE = -1
ANYWHERE: Position = (ANY_DEVICE, 0)
"""No position is preferred."""
Spot = tuple[int, int, tuple[Position, ...]]
"""A node, how many pods go there, and the positions that their shares or partitions should
have, one each; none: the best by the rules of this module."""
Found = list[tuple[int, Grant]]
_STRENGTH = {"none": 0, "soft": 1, "hard": 2}
_UNLIMITED = 1 << 30


@dataclasses.dataclass(slots=True)
class View:
    """One node's devices and what is left of each."""

    devices: Sequence[Device]
    compute: list[int]
    memory: list[int]
    mode: list[int]
    used: list[int]
    serving: list[list[int]]
    """Per request of the pod, the devices that could serve it."""
    preferred: Position = ANYWHERE
    """The position that a share or a partition should have, if it still fits there."""
    following: int | None = None
    """Pods with the same single request that must still fit on the node after this one. None:
    not known, so that a partition leaves as many of its own profile as possible."""

    def take(self, j: int, grant: Grant) -> None:
        self.compute[j] -= grant.compute
        self.memory[j] -= grant.memory
        if grant.form == "partition":
            self.used[j] |= occupied(self.devices[j], grant.profile, grant.start)
            self.mode[j] = PARTITIONED
        elif grant.form == "ratio":
            self.used[j] += 1
            self.mode[j] = RATIO + grant.ratio
        else:
            self.mode[j] = HELD if grant.form == "whole" else SHARED

    def copy(self) -> View:
        return View(
            self.devices, self.compute[:], self.memory[:], self.mode[:], self.used[:],
            self.serving, self.preferred, self.following,
        )  # fmt: skip


def choose(
    view: View,
    requests: tuple[DeviceRequest, ...],
    bundle: str,
    numa_capacity: Mapping[int, int] | None = None,
) -> Found:
    """Grants for all requests of one pod, each with its device; empty if there are none.

    With a bundle they come from one locality domain, on a NUMA node that `numa_capacity` does not
    report as full. Where a node does not report the locality of its devices, the node's own device
    manager chooses. Devices under one switch are on one NUMA node: where no switches are known,
    that much still holds. Without a bundle, several kinds are still put under one switch or NUMA
    node where possible.
    """
    if len(requests) == 1 and not bundle:
        return _choose_in(view, requests)
    keys: list[Callable[[Device], object]] = [lambda d: d.switch or None, lambda d: d.numa]
    for key in keys[1:] if bundle == "numa" else keys:
        domains = _tightest_first(view, key)
        for domain in domains:
            if numa_capacity and numa_capacity.get(view.devices[domain[0]].numa, 1) <= 0:
                continue
            if found := _choose_in(view, requests, domain):
                return found
        if bundle and domains:
            return []
    return _choose_in(view, requests)


def _tightest_first(view: View, key: Callable[[Device], object]) -> list[list[int]]:
    """Locality domains, the one with the least left first, so that roomy ones stay roomy."""
    domains: dict[object, list[int]] = {}
    for j, device in enumerate(view.devices):
        place = key(device)
        if place is not None and place != -1:
            domains.setdefault(place, []).append(j)
    return sorted(domains.values(), key=lambda js: (sum(view.compute[j] for j in js), js))


def _choose_in(
    view: View, requests: tuple[DeviceRequest, ...], where: Iterable[int] | None = None
) -> Found:
    if len(requests) == 1 and where is None:
        return _CHOOSERS[requests[0].form](view, requests[0], view.serving[0])
    scratch = view.copy()
    places = None if where is None else set(where)
    grants: Found = []
    for request, serving in zip(requests, view.serving, strict=True):
        eligible = serving if places is None else [j for j in serving if j in places]
        found = _CHOOSERS[request.form](scratch, request, eligible)
        if not found:
            return []
        for j, grant in found:
            grants.append((j, grant))
            scratch.take(j, grant)
    return grants


def _whole(view: View, request: DeviceRequest, eligible: list[int]) -> Found:
    free = [j for j in eligible if view.mode[j] == UNLOCKED]
    if len(free) < request.count:
        return []
    for model in request.models or ("",):
        same = [j for j in free if view.devices[j].model == model] if model else free
        if len(same) >= request.count:
            chosen = _best_linked(view, same, request.count)
            return [(j, _all_of(view.devices[j])) for j in chosen]
    return []


def _best_linked(view: View, free: list[int], count: int) -> list[int]:
    """Devices of one link group if one has enough (the smallest such), else of one NUMA node."""
    if count == len(free) or count == 1:
        return _from_smallest_group(view, free) if count == 1 else free
    for key in ("links", "switch", "numa"):
        groups: dict[object, list[int]] = {}
        for j in free:
            place = getattr(view.devices[j], key)
            if place not in ("", -1):
                groups.setdefault(place, []).append(j)
        enough = [group for group in groups.values() if len(group) >= count]
        if enough:
            return min(enough, key=lambda group: (len(group), group))[:count]
    return free[:count]


def _from_smallest_group(view: View, free: list[int]) -> list[int]:
    """A single device is taken where it breaks the least: from the smallest free link group."""
    links = [view.devices[j].links for j in free]
    return [min(zip(map(links.count, links), free, strict=True))[1]]


_grant = functools.lru_cache(1 << 16)(Grant)
"""The same parts of the same devices are granted again and again, and making one costs more than
choosing it."""


def _all_of(device: Device) -> Grant:
    return _grant(device.id, "whole", device.compute, device.memory)


def _share(view: View, request: DeviceRequest, eligible: list[int]) -> Found:
    fitting = [
        j
        for j in eligible
        if view.mode[j] in (UNLOCKED, SHARED)
        and view.compute[j] >= request.compute
        and view.memory[j] >= request.memory
    ]
    if not fitting:
        return []
    j = min(fitting, key=lambda j: (_model_rank(view, request, j), j != view.preferred[0],
                                    view.mode[j] == UNLOCKED, view.compute[j], view.memory[j],
                                    j))  # fmt: skip
    grant = _grant(view.devices[j].id, "share", request.compute, request.memory)
    return [(j, grant)]


def _ratio(view: View, request: DeviceRequest, eligible: list[int]) -> Found:
    mode = RATIO + request.ratio
    fitting = [
        j
        for j in eligible
        if view.mode[j] == UNLOCKED or (view.mode[j] == mode and view.used[j] < request.ratio)
    ]
    if not fitting:
        return []
    j = min(fitting, key=lambda j: (_model_rank(view, request, j), -view.used[j], j))
    device = view.devices[j]
    part = Grant(
        device.id, "ratio", WHOLE // request.ratio, device.memory // request.ratio, request.ratio
    )
    return [(j, part)]


def _partition(view: View, request: DeviceRequest, eligible: list[int]) -> Found:
    """The position that blocks the fewest other placements, of those that leave enough positions
    for the pods that follow."""
    open_devices = [j for j in eligible if view.mode[j] in (UNLOCKED, PARTITIONED)]
    spare = _spare(view, request, open_devices)
    best: tuple[tuple[object, ...], int, int] | None = None
    for j in open_devices:
        device, used = view.devices[j], view.used[j]
        profile = _profile(device, request.profile)
        before = _most(profile, used)
        for start in profile.starts:
            bits = occupied(device, profile.name, start)
            if bits & used:
                continue
            lost = before - _most(profile, used | bits)
            rank = (_model_rank(view, request, j), max(0, lost - spare),
                    (j, start) != view.preferred, partitions.cost(device, used, bits, ()),
                    j, start)  # fmt: skip
            if best is None or rank < best[0]:
                best = (rank, j, start)
    if best is None:
        return []
    _, j, start = best
    device = view.devices[j]
    profile = _profile(device, request.profile)
    memory = device.memory * profile.slices // device.slices
    grant = _grant(device.id, "partition", profile.compute, memory, 0, profile.name, start)
    return [(j, grant)]


def _spare(view: View, request: DeviceRequest, open_devices: list[int]) -> int:
    """Partitions of the requested profile that may be given up by placing one of them."""
    if view.following is None:
        return 1
    if not view.following:
        return _UNLIMITED
    fitting = sum(
        most_partitions(view.devices[j], request.profile, view.used[j]) for j in open_devices
    )
    return fitting - view.following


def _model_rank(view: View, request: DeviceRequest, j: int) -> int:
    return request.models.index(view.devices[j].model) if request.models else 0


_CHOOSERS = {"whole": _whole, "share": _share, "ratio": _ratio, "partition": _partition}


def serves(device: Device, request: DeviceRequest) -> bool:
    """Kind, model, form, isolation and size; independent of what is allocated."""
    return (
        device.kind == request.kind
        and device.healthy
        and is_granted(device, request)
        and is_model(device, request)
        and has_profile(device, request)
        and is_apart(device, request)
        and has_memory(device, request)
    )


def is_model(device: Device, request: DeviceRequest) -> bool:
    return not request.models or device.model in request.models


def is_granted(device: Device, request: DeviceRequest) -> bool:
    return request.form in device.forms


def has_profile(device: Device, request: DeviceRequest) -> bool:
    return not request.profile or any(p.name == request.profile for p in device.profiles)


def is_apart(device: Device, request: DeviceRequest) -> bool:
    return request.form == "whole" or _STRENGTH[device.isolation] >= _STRENGTH[request.isolation]


def has_memory(device: Device, request: DeviceRequest) -> bool:
    """A device of unknown memory offers no share of it."""
    return request.form != "share" or device.memory >= request.memory


# --- partitions ---------------------------------------------------------------------------------


def occupied(device: Device, profile: str, start: int) -> int:
    """The slices of a partition as bits."""
    slices = next((each.slices for each in device.profiles if each.name == profile), 0)
    if not slices:  # granted before the device was set up anew: nothing is known to be left
        return (1 << max(device.slices, 1)) - 1
    return ((1 << slices) - 1) << start


def most_partitions(device: Device, profile: str, used: int) -> int:
    """How many partitions of one profile still fit beside what is occupied."""
    return _most(_profile(device, profile), used)


@functools.cache
def _most(profile: Profile, used: int) -> int:
    best = 0
    for start in profile.starts:
        bits = ((1 << profile.slices) - 1) << start
        if not bits & used:
            best = max(best, 1 + _most(profile, used | bits))
    return best


def _profile(device: Device, name: str) -> Profile:
    return next(profile for profile in device.profiles if profile.name == name)
