"""Events about reserved starts that were withdrawn, and why.

The status message of the Run says so until the next decision. The event stays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windlass.control.runtime import event_recorder
from windlass.core.model.types import Withdrawal
from windlass.core.verdicts import formatting
from windlass.kinds.types.run import Run
from windlass.store import interface

REASON = "StartWithdrawn"


async def record(
    store: interface.Store,
    known: Callable[[str], Run | None],
    withdrawals: Iterable[Withdrawal],
    component: str,
) -> None:
    """Only Runs get events; `pod_binder` writes the reasons of external pods."""
    for each in withdrawals:
        owner = known(each.workload)
        if owner is not None:
            message = f"The start by {formatting.moment(each.start)} was withdrawn: {each.reason}."
            await event_recorder.record(
                store, owner, event_recorder.WARNING, REASON, message, component
            )
