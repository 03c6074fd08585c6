"""What the ledger writes down: plain values. Pure.

All times are whole Unix seconds. Money is an integer of thousandths of a micro-unit ("nano"), so
that a rate by the second times seconds is exact; people see micro-units (`money`).
"""

from __future__ import annotations

import dataclasses

WHOLE = 1_000_000
"""Parts of a device: millionths."""
MACHINE = "machine"
"""The device that a node is besides its accelerators: its processors and its memory."""
DAY = 86400


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Device:
    """A piece of hardware, by its place."""

    node: str
    name: str
    """`gpu/0`; `machine`."""
    kind: str
    model: str = ""
    node_class: str = ""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Party:
    """Who holds: a Run's, or somebody else's pod."""

    uid: str
    """Of the Run, or of the pod."""
    team: str
    """The namespace."""
    user: str = ""
    run: str = ""
    """The Run's name; "" for other people's pods."""
    queue: str = ""


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Member:
    """Which member of it: (attempt, role, index); a pod alone is ("", 0)."""

    attempt: int = 0
    role: str = ""
    index: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class Hold:
    """A member holds a part of a device from when to when; `ended` is None while it does."""

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
    """Thousandths of cores; of the machine only."""
    memory: int = 0
    """Bytes, of the machine or of the device."""
    pod: str = ""
    """The uid of the pod that was seen for it."""

    @property
    def key(self) -> tuple[str, Member, Device, int]:
        """No two intervals have the same."""
        return self.party.uid, self.member, self.device, self.started


@dataclasses.dataclass(frozen=True, slots=True)
class Presence:
    """A device is there from when to when."""

    device: Device
    started: int
    ended: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Gap:
    """A time of which the ledger cannot know everything."""

    what: str
    """`observation`, `pod`, `node` or `run`."""
    subject: str
    """Of whom."""
    team: str
    """Whose; "" concerns everybody."""
    started: int
    ended: int
    detail: str = ""
