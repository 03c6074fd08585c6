"""Arrays and their indices as text, for `windlass why`; and which Runs `windlass ps` shows.

Pure. `server.platform.handlers.runs` reads the objects.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from windlass.control.arrays import plan
from windlass.control.model import array_runs, dependencies
from windlass.kinds import array_results, reasons
from windlass.kinds.types.run import ArrayStatus, Run
from windlass.kinds.values import index_set

_SHOWN = 5


def is_part(owner: Run, find: Callable[[str], Run | None]) -> bool:
    """Whether the Run is one index of an array that exists: lists show the array."""
    found = array_runs.identity(owner)
    array = find(found.array_uid) if found is not None else None
    return array is not None and array.spec.array is not None


def row(array: Run) -> dict[str, Any]:
    """The counts of an array in a row of `ps`."""
    status = array.status.array or ArrayStatus()
    total = status.total
    if not total and array.spec.array is not None:
        total = index_set.parse(array.spec.array.indices).bit_count()
    return {
        "total": total,
        "running": status.running,
        "succeeded": status.succeeded,
        "failed": status.failed,
        "stopped": status.stopped,
    }


def sentences(array: Run) -> list[str]:
    """How its indices fare."""
    status, counts = array.status.array or ArrayStatus(), row(array)
    ended = counts["succeeded"] + counts["failed"] + counts["stopped"]
    found = [
        f"{ended} of {counts['total']} indices have ended: {counts['succeeded']} succeeded, "
        f"{counts['failed']} failed, {counts['stopped']} stopped."
    ]
    for failure in (status.failures or [])[:_SHOWN]:
        code = "" if failure.exit_code is None else f" with exit code {failure.exit_code}"
        found.append(f"Failed{code} ({failure.reason}): {plan.shortened(failure.indices)}.")
    if status.active_indices:
        found.append(
            f"Running or in the queue: {plan.shortened(status.active_indices)} "
            f"({counts['running']} running)."
        )
    return found


def of_index(array: Run, index: int) -> dict[str, Any]:
    """The explanation of an index without a Run: it has ended, or its turn has not come."""
    result = array_results.result_of(array, index)
    answer: dict[str, Any] = {
        "phase": result.phase or "Pending", "reason": result.reason,
        "sentences": [_ended(result) if result.phase else _pending(array, index)],
    }  # fmt: skip
    if result.exit_code is not None:
        answer["exitCode"] = result.exit_code
    if result.phase == "Failed" and result.reason in reasons.Reason.__members__.values():
        about = reasons.Reason(result.reason).about
        answer |= {"actor": about.actor, "remedy": about.remedy}
    return answer


def _ended(result: array_results.IndexResult) -> str:
    code = "" if not result.exit_code else f" with exit code {result.exit_code}"
    return f"It has ended: {result.phase}{code}."


def _pending(array: Run, index: int) -> str:
    if array.spec.suspend:
        return "It has not started: the array is suspended."
    if (held := dependencies.hold(array)) is not None:
        return f"It has not started: {held[1]}."
    pending = plan.not_started(array)
    before = (pending & ((1 << index) - 1)).bit_count()
    limit = array.spec.array and array.spec.array.parallelism
    most = f" of at most {limit}" if limit else ""
    active = index_set.parse((array.status.array or ArrayStatus()).active_indices).bit_count()
    return f"It has not started: {active}{most} indices are in work, and {before} are before it."
