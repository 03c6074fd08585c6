"""The progress of a job: from the annotation on its pods to the status of the Run. Pure.

The agent copies what the job wrote to the pod; it can contain anything.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import msgspec

from windlass.control.model import members
from windlass.kinds.types import core, run

ANNOTATION = "windlass.dev/progress"
EVERY = 10.0
"""The minimum of seconds between two writes for one Run."""
LONGEST, LONGEST_NAME, MOST_METRICS = 16 * 1024, 63, 64
PROBLEM = (
    f"the progress that it reports is ignored: write JSON such as "
    f'{{"fraction": 0.4, "metrics": {{"loss": 0.3}}}} with a fraction from 0 to 1 and at most '
    f"{MOST_METRICS} numbers"
)


class ProgressError(ValueError):
    """The annotation of a pod is no valid progress."""


def of_run(owner: run.Run, pods: Iterable[core.Pod]) -> run.Progress | None:
    """The progress of the first replica that reports: roles in their order, then by index."""
    order = {role.name: place for place, role in enumerate(owner.spec.roles)}
    reports: dict[tuple[int, int], str] = {}
    for pod in pods:
        key, text = members.key_of(pod), (pod.metadata.annotations or {}).get(ANNOTATION)
        if key is not None and text and key.attempt == owner.status.attempt:
            reports[order.get(key.role, len(order)), key.index] = text
    return read(reports[min(reports)]) if reports else None


def read(text: str) -> run.Progress:
    if len(text) > LONGEST:
        raise ProgressError("too long")
    try:
        found = msgspec.json.decode(text, type=run.Progress)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise ProgressError(str(error)) from None
    metrics = found.metrics or {}
    if found.fraction is not None and not 0 <= found.fraction <= 1:
        raise ProgressError("the fraction is not between 0 and 1")
    if len(metrics) > MOST_METRICS or any(len(name) > LONGEST_NAME for name in metrics):
        raise ProgressError("too many metrics, or too long a name")
    if not all(math.isfinite(value) for value in metrics.values()):
        raise ProgressError("a metric is not a number")
    return found
