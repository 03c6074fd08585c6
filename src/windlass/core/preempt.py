"""Making room: shrinking and stopping running units so that one who has the right can start."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core.facts import Unit
from windlass.core.place import Failure
from windlass.core.queues import Shortage

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle


def within_queue(cycle: Cycle, unit: Unit, shortage: Shortage) -> bool:
    return False


def make_room(cycle: Cycle, unit: Unit, failure: Failure) -> bool:
    return False
