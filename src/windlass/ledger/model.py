"""The values that the ledger stores. Pure.

All times are whole Unix seconds. Money is an integer in billionths of the currency ("nano"), so
that a rate per second times seconds is exact; users see millionths (`money`).
"""

from __future__ import annotations

import dataclasses

WHOLE = 1_000_000
"""Parts of a device: millionths."""
MACHINE = "machine"
"""The device that a node is besides its accelerators: its processors and its memory."""
DAY = 86400
CPU = "cpu"
"""Stands beside `machine` in fleet samples: queues and waiting runs count cores."""
ALL = ""
"""Instead of a team: the whole fleet."""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Device:
    """A piece of hardware, identified by node and name."""

    node: str
    name: str
    """`gpu/0`; `machine`."""
    kind: str
    model: str = ""
    node_class: str = ""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Party:
    """The user of a device: a Run, or an external pod."""

    uid: str
    """The uid of the Run or of the pod."""
    team: str
    """The namespace."""
    user: str = ""
    run: str = ""
    """The name of the Run; empty for an external pod."""
    queue: str = ""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Member:
    """A replica: (attempt, role, index); ("", 0) for an external pod."""

    attempt: int = 0
    role: str = ""
    index: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """A replica uses a part of a device for an interval; `ended` is None while it lasts."""

    party: Party
    member: Member
    device: Device
    started: int
    ended: int | None
    form: str = "whole"
    part: int = WHOLE
    """The dominant part, in millionths of the device."""
    milli: int = 1000
    """The share of a device's compute, in thousandths."""
    cpu: int = 0
    """Thousandths of cores; only of the machine."""
    memory: int = 0
    """Bytes, of the machine or of the device."""
    pod: str = ""
    """The uid of the pod that was observed for it."""

    @property
    def key(self) -> tuple[str, Member, Device, int]:
        """Unique among intervals."""
        return self.party.uid, self.member, self.device, self.started


@dataclasses.dataclass(frozen=True, slots=True)
class Presence:
    """The interval in which a device existed."""

    device: Device
    started: int
    ended: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """An interval that the ledger did not observe completely."""

    what: str
    """`observation`, `pod`, `node` or `run`."""
    subject: str
    """The name of the run, pod, node or controller."""
    team: str
    """The namespace; empty if the gap concerns every team."""
    started: int
    ended: int
    detail: str = ""


@dataclasses.dataclass(slots=True)
class QueueAmounts:
    """The usage of a queue from its status, and its demand. Thousandths of devices."""

    used: int = 0
    borrowed: int = 0
    lent: int = 0
    waiting: int = 0


@dataclasses.dataclass(slots=True)
class DeviceAmounts(QueueAmounts):
    """The same for a team or the fleet, where `used` is the measured activity."""

    present: int = 0
    held: int = 0
    measured: int = 0
    """Devices whose activity is measured; `used` is a part of this."""


@dataclasses.dataclass(slots=True)
class FleetSample:
    """The state of the fleet at one moment."""

    cells: dict[tuple[str, str], DeviceAmounts] = dataclasses.field(default_factory=dict)
    """By team and device."""
    queues: dict[tuple[str, str], QueueAmounts] = dataclasses.field(default_factory=dict)
    """By queue and resource."""

    def of(self, team: str, device: str) -> DeviceAmounts:
        return self.cells.setdefault((team, device), DeviceAmounts())

    def both(self, team: str, device: str) -> tuple[DeviceAmounts, ...]:
        """The team's amounts and the fleet's."""
        return (self.of(team, device), self.of(ALL, device)) if team else (self.of(ALL, device),)


def device_name(kind: str, model: str) -> str:
    """How reports and metrics name a device: `gpu/H100`, or the kind where the model is unknown."""
    return f"{kind}/{model}" if model else kind
