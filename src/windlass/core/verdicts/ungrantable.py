"""Why no node here can ever grant a part of a device that a pod asks for: what is missing, to
which devices, and what to do. Called by `verdicts` with the devices of the nodes it may use.
"""

from __future__ import annotations

from collections.abc import Sequence

from windlass.core.cluster.devices import device_allocation
from windlass.core.model.types import Device, DeviceRequest

_OFFERS = "in windlass.dev/capabilities"


def why(request: DeviceRequest, there: Sequence[Device]) -> str:
    """`there`: devices of the kind. "": a node can, or there is no device at all."""
    if request.form == "whole" or not there:
        return ""
    left = there
    # Each step looks only at devices that passed those before: the first to leave none is why.
    for keeps, says in (
        (device_allocation.is_model, _no_model),
        (device_allocation.is_granted, _not_granted),
        (device_allocation.has_profile, _no_profile),
        (device_allocation.is_apart, _not_apart),
        (device_allocation.has_memory, _too_small),
    ):
        passing = [device for device in left if keeps(device, request)]
        if not passing:
            return says(request, left)
        left = passing
    return ""


def _no_model(request: DeviceRequest, there: Sequence[Device]) -> str:
    wanted, kind = " or ".join(request.models), request.kind
    known = sorted({device.model for device in there} - {""})
    if known:
        return (
            f"needs a part of a {kind} ({wanted}); those of the nodes it may use are "
            f"{', '.join(known)}: name one of these, or no model"
        )
    return (
        f"needs a part of a {kind} ({wanted}); no node it may use has the label "
        f"windlass.dev/{kind}-model: have it set, or name no model"
    )


def _not_granted(request: DeviceRequest, _: Sequence[Device]) -> str:
    what = _parts(request)
    return (
        f"no node grants {what} of {_named(request)}: none that has any offers {what} "
        f"{_OFFERS}; ask for whole ones"
    )


def _no_profile(request: DeviceRequest, there: Sequence[Device]) -> str:
    known = sorted({profile.name for device in there for profile in device.profiles})
    cut = f"they can be cut into {', '.join(known)}" if known else "they cannot be cut at all"
    return f"no {_named(request)} can be cut into {request.profile}; {cut}"


def _not_apart(request: DeviceRequest, _: Sequence[Device]) -> str:
    return (
        f"no node keeps {_parts(request)} of {_named(request)} apart from each other as strictly "
        f"as {request.isolation}: none offers isolation:{request.isolation} {_OFFERS}; ask for "
        "less isolation or for whole ones"
    )


def _too_small(request: DeviceRequest, there: Sequence[Device]) -> str:
    kind, largest = request.kind, max(device.memory for device in there)
    if largest:
        return (
            f"needs {request.memory}Mi of a {_named(request)}; the largest of which shares are "
            f"granted has {largest}Mi"
        )
    return (
        f"needs {request.memory}Mi of a {_named(request)}; no node that grants shares of it has "
        f"the label windlass.dev/{kind}-memory: have it set, or ask for a share by compute or as a "
        "fraction"
    )


def _parts(request: DeviceRequest) -> str:
    return "partitions" if request.form == "partition" else "shares"


def _named(request: DeviceRequest) -> str:
    return f"{request.kind} ({' or '.join(request.models)})" if request.models else request.kind
