"""Which advance reservation keeps a workload waiting, and what it is told about that."""

from __future__ import annotations

from typing import TYPE_CHECKING

from windlass.core import earliest, place, verdicts
from windlass.core.facts import AdvanceReservation, Unit, Verdict
from windlass.kinds.reasons import Reason

if TYPE_CHECKING:
    from windlass.core.cycle import Cycle

MOST_TRIED = 4
"""Windows that are tried one by one before the first of them is named for all."""


def verdict(cycle: Cycle, unit: Unit) -> Verdict | None:
    """None: no reservation is in the way."""
    window = _in_the_way(cycle, unit)
    return None if window is None else _told(cycle, unit, window)


def _in_the_way(cycle: Cycle, unit: Unit) -> AdvanceReservation | None:
    """The window without which there would be room now; None: it is not a window that is in the
    way."""
    windows = cycle.windows
    names = next((role.constraint.reserved for role in unit.roles), ())
    if windows is None or not names:
        return None
    binding = {each.id: each for each in windows.binding(unit)}
    if not _fits(cycle, unit, ()):
        return None
    for name in names[:MOST_TRIED]:
        others = tuple(other for other in names if other != name)
        if others and _fits(cycle, unit, others):
            return binding.get(name)
    return binding.get(names[0])


def _told(cycle: Cycle, unit: Unit, window: AdvanceReservation) -> Verdict:
    start, end = verdicts.moment(window.start), verdicts.moment(window.end)
    what = "for maintenance " if window.is_maintenance else ""
    if window.start <= cycle.now:
        message = f"there is room for it, but reservation {window.name} holds it {what}until {end}"
        return Verdict(unit.key, Reason.RESERVED_UNTIL, message, window.name)
    message = (
        f"there is room for it, but reservation {window.name} holds it {what}from {start} "
        f"until {end}, "
    )
    if unit.expected is None and unit.max_runtime is None and not unit.preemptible:
        message += "and it does not say how long it runs; give it a maximum duration to let it "
        message += "start before"
    else:
        message += "and it would still run then"
    return Verdict(unit.key, Reason.RESERVED_UNTIL, message, window.name)


def _fits(cycle: Cycle, unit: Unit, names: tuple[str, ...]) -> bool:
    """Whether there is room by count if only these windows held anything back."""
    bound = cycle.snapshot.calendar.bound(unit, names)
    return earliest.fits_by_count(cycle.scene, bound, place.least_of(bound))
