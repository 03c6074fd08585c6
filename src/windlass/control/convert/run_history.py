"""The durations of finished Runs, for predictions."""

from __future__ import annotations

from collections.abc import Iterable

from windlass.control.convert import node_facts, run_workloads
from windlass.control.convert.quantities import Fact
from windlass.core.model import types
from windlass.core.prediction import predictor
from windlass.kinds.types.run import Run


def history(
    runs: Iterable[tuple[Run, Fact | None, str]], levels: node_facts.Levels
) -> predictor.History:
    """From Runs in the order of submission, each with its fact while it waits or runs, and
    queue."""
    found = predictor.History()
    for owner, fact, queue in runs:
        seconds = run_workloads.ran(owner)
        if seconds is not None:
            found.observe(run_workloads.read_workload(owner, queue, levels), seconds)
        elif isinstance(fact, types.Workload):
            found.register(fact)
        elif fact is not None:
            found.register(fact.workload, fact.started)
    return found
