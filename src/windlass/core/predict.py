"""How long units run, learned from those that ran: nothing else is known about the future.

`History` is what was observed. `decide` asks it for predictions; the order `attained` ranks by
its index. It never looks at a unit's true duration: only at what was attained and who ended.
"""

from __future__ import annotations

from windlass.core.facts import Unit


class History:
    """Durations of units that ended."""

    def observe(self, unit: Unit, ran: float) -> None:
        """A unit ended by itself after so many seconds."""

    def expected(self, unit: Unit) -> float | None:
        """Seconds it will probably run; None when nothing is known."""

    def index(self, unit: Unit, attained: float) -> float:
        """Device-seconds to invest per completion: small goes first."""
        return attained
