"""What Runs tell about those to come: how long the ones that ended well took."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.control import nodefacts, snapshots
from windlass.control.factparts import Fact
from windlass.core import facts, predict
from windlass.kinds.run import Run


def history(
    runs: Iterable[tuple[Run, Fact | None, str]], levels: nodefacts.Levels
) -> predict.History:
    """Of Runs in the order of submission, each with its fact while it waits or runs, and queue."""
    found = predict.History()
    for owner, fact, queue in runs:
        seconds = snapshots.ran(owner)
        if seconds is not None:
            found.observe(snapshots.read_unit(owner, queue, levels), seconds)
        elif isinstance(fact, facts.Unit):
            found.know(fact)
        elif fact is not None:
            found.know(fact.unit, fact.started)
    return found
