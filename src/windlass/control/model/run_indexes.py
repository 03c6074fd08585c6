"""Indexes of the Run informer: by the Runs that it waits for, by the array that it is an index
of."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from windlass.control.model import array_runs
from windlass.kinds.types.run import Run

BY_AFTER, BY_ARRAY = "after", "array"


def after(owner: Run) -> Iterable[str]:
    """Namespace and name of each Run that this one waits for."""
    return [f"{owner.namespace}/{each.run}" for each in owner.spec.after or ()]


def array(owner: Run) -> Iterable[str]:
    """Namespace and name of its array."""
    found = array_runs.identity(owner)
    return () if found is None else (f"{owner.namespace}/{found.array}",)


ALL: dict[str, Callable[[Run], Iterable[str]]] = {BY_AFTER: after, BY_ARRAY: array}
