"""Tells owners of Runs that a start they were given was withdrawn, and why.

The status message of the Run says so until the next decision. The event stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windlass.control import events
from windlass.core import verdicts
from windlass.core.facts import Withdrawal
from windlass.kinds.run import Run
from windlass.store import client

REASON = "StartWithdrawn"


async def tell(
    store: client.Store,
    known: Callable[[str], Run | None],
    withdrawals: Iterable[Withdrawal],
    component: str,
) -> None:
    """Of pods that are no Runs nothing is told: their reasons are told by `binding`."""
    for each in withdrawals:
        owner = known(each.unit)
        if owner is not None:
            message = f"The start by {verdicts.moment(each.start)} was withdrawn: {each.reason}."
            await events.tell(store, owner, events.WARNING, REASON, message, component)
