"""How the indices of an array fare, from its status alone. Pure."""

from __future__ import annotations

import dataclasses

from windlass.kinds.types import run
from windlass.kinds.values import index_set


@dataclasses.dataclass(frozen=True, slots=True)
class IndexResult:
    """How one index ended; `phase` is empty while it has not."""

    index: int
    phase: str
    reason: str = ""
    exit_code: int | None = None


def result_of(array: run.Run, index: int) -> IndexResult:
    """ValueError if the array does not have this index."""
    spec, status = array.spec.array, array.status.array or run.ArrayStatus()
    if spec is None:
        raise ValueError(f"run {array.name} is not an array")
    if not index_set.parse(spec.indices) >> index & 1:
        raise ValueError(f"run {array.name} has no index {index}: its indices are {spec.indices}")
    return _found(_outcomes(status), index)


def phase_of(array: run.Run, index: int) -> str:
    """How the index ended; "" while it has not."""
    return result_of(array, index).phase


def results(array: run.Run) -> list[IndexResult]:
    """Of all indices, ascending."""
    spec, outcomes = array.spec.array, _outcomes(array.status.array or run.ArrayStatus())
    indices = index_set.members(index_set.parse(spec.indices)) if spec is not None else ()
    return [_found(outcomes, index) for index in indices]


def started(array: run.Run) -> list[int]:
    """Indices that have ended or are active: those that may have a log."""
    status = array.status.array or run.ArrayStatus()
    found = index_set.parse(status.active_indices)
    for indices, _ in _outcomes(status):
        found |= indices
    return list(index_set.members(found))


def _outcomes(status: run.ArrayStatus) -> list[tuple[int, IndexResult]]:
    """Sets of indices, each with how they ended."""
    return [
        (index_set.parse(status.succeeded_indices), IndexResult(0, "Succeeded", "Completed", 0)),
        (index_set.parse(status.stopped_indices), IndexResult(0, "Stopped", "UserStopped")),
        *(
            (index_set.parse(each.indices), IndexResult(0, "Failed", each.reason, each.exit_code))
            for each in status.failures or ()
        ),
    ]


def _found(outcomes: list[tuple[int, IndexResult]], index: int) -> IndexResult:
    for indices, result in outcomes:
        if indices >> index & 1:
            return dataclasses.replace(result, index=index)
    return IndexResult(index, "")
