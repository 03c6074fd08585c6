"""Promises to blocked heads: when and where they start, and room that others leave free."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from windlass.core.facts import Reservation, Seat, Unit
from windlass.core.place import Wish

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

Ints = npt.NDArray[np.int64]


@dataclasses.dataclass(slots=True)
class Held:
    reservation: Reservation


def reserve(cycle: Cycle, unit: Unit) -> None:
    return


def ceilings(cycle: Cycle, wishes: Sequence[Wish]) -> dict[int, Ints]:
    return {}


def also_take(cycle: Cycle, unit: Unit, seats: Sequence[Seat], end: float | None) -> None:
    return
