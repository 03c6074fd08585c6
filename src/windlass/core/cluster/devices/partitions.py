"""Where a partition of a device goes: the position that blocks the fewest other placements.

A partition profile (MIG) occupies adjacent slices from one of a few legal starts, so a partition in
the wrong place blocks profiles for which enough slices are free. The *value* of a device is the
sum over its profiles of the part of their legal starts that is still free, each weighted by its
slices: one large partition is as hard to place as the small ones that would fill it. A position
costs the part of the value that it takes away.

Profiles count by how often they were requested where that is known, else evenly; the even cost
breaks ties. docs/design/packing.md has the measurements.
"""

from __future__ import annotations

import functools

from windlass.core.model.types import Device, Profile

Requested = tuple[tuple[str, int], ...]
"""Profile name and how often it was requested, sorted by name; empty: not known."""
Cost = tuple[int, int, bool]
"""By requests, evenly, and whether the position opens an unused device: smaller is better."""
Position = tuple[int, int]
"""A device of a node, and the slice at which a partition begins; 0 for anything else."""

_EVENLY: Requested = ()
_ALL_STARTS = 27_720
"""Divisible by 1 to 12, so that the part of one start is exact for real profiles."""
_SCALE = 1_000_000


def cheapest(device: Device, name: str, used: int, requested: Requested) -> tuple[Cost, int] | None:
    """The best free start of a profile beside the used slices, with its cost; None: it is full."""
    return _cheapest(placements(device), name, used, requested)


def cost(device: Device, used: int, bits: int, requested: Requested) -> Cost:
    """What these slices of a device take away from later partitions."""
    return _cost(placements(device), used, bits, requested)


@functools.lru_cache(1 << 12)
def placements(device: Device) -> tuple[Profile, ...]:
    """The profiles of a device, and the whole device where it is granted so and none covers it."""
    covered = any(profile.slices >= device.slices for profile in device.profiles)
    if covered or "whole" not in device.forms:
        return device.profiles
    return (*device.profiles, Profile("", device.slices, (0,)))


@functools.lru_cache(1 << 16)
def _cheapest(
    profiles: tuple[Profile, ...], name: str, used: int, requested: Requested
) -> tuple[Cost, int] | None:
    profile = next(each for each in profiles if each.name == name)
    found = [
        (_cost(profiles, used, _bits(profile, start), requested), start)
        for start in profile.starts
        if not _bits(profile, start) & used
    ]
    return min(found, default=None)


@functools.lru_cache(1 << 16)
def _cost(profiles: tuple[Profile, ...], used: int, bits: int, requested: Requested) -> Cost:
    evenly = _lost(profiles, used, bits, _EVENLY)
    by_requests = _lost(profiles, used, bits, requested) if requested else 0
    return by_requests, evenly, used == 0


def _lost(profiles: tuple[Profile, ...], used: int, bits: int, requested: Requested) -> int:
    """The part of an unused device's value, so that devices of several models can be compared."""
    lost = _value(profiles, used, requested) - _value(profiles, used | bits, requested)
    return lost * _SCALE // max(1, _value(profiles, 0, requested))


@functools.lru_cache(1 << 16)
def _value(profiles: tuple[Profile, ...], used: int, requested: Requested) -> int:
    weights = dict(requested)
    return sum(
        (weights.get(profile.name, 0) if requested else 1)
        * profile.slices
        * sum(not _bits(profile, start) & used for start in profile.starts)
        * (_ALL_STARTS // len(profile.starts))
        for profile in profiles
        if profile.starts
    )


def _bits(profile: Profile, start: int) -> int:
    return ((1 << profile.slices) - 1) << start
