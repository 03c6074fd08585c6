"""For programs that run as a job: their replica, and their progress. Standard library of
Python 3.8 or newer only.

It also works outside a job: then the program is a single replica.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import math
import os
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sized
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

MOST_METRICS = 64
_EVERY = 0.5
"""Seconds between two reports of `progress`."""


@dataclasses.dataclass(frozen=True)
class Context:
    """The run and the replica of this process."""

    run: str
    """Name of the run; "" outside a job."""
    attempt: int
    """Number of the attempt, from 0. A later attempt may find checkpoints of an earlier one."""
    role: str
    index: int
    """Index of this replica in its role."""
    rank: int
    """Rank of this replica in the run."""
    size: int
    """Number of replicas."""
    hosts: tuple[str, ...]
    """Host names of the replicas, by rank; empty if unknown."""
    checkpoint: Path | None
    """Folder of the checkpoints, which outlives this attempt."""
    array_index: int | None = None
    """Index of the array; None: the run is none."""

    @property
    def inside(self) -> bool:
        """Whether the process runs as a job."""
        return bool(self.run)


def context(environ: Mapping[str, str] = os.environ) -> Context:
    """The run and the replica of this process.

    >>> me = context({"WINDLASS_RUN": "train", "WINDLASS_RANK": "1", "WINDLASS_SIZE": "4"})
    >>> me.run, me.rank, me.size, me.attempt
    ('train', 1, 4, 0)
    >>> context({"WINDLASS_RUN": "sweep-7", "WINDLASS_ARRAY_INDEX": "7"}).array_index
    7
    """
    array_index = environ.get("WINDLASS_ARRAY_INDEX", "")
    index = _number(environ, 0, "WINDLASS_INDEX")
    folder = environ.get("WINDLASS_CHECKPOINT", "")
    return Context(
        run=environ.get("WINDLASS_RUN", ""),
        attempt=_number(environ, 0, "WINDLASS_ATTEMPT"),
        role=environ.get("WINDLASS_ROLE", ""),
        index=index,
        rank=_number(environ, index, "WINDLASS_RANK", "RANK"),
        size=_number(environ, 1, "WINDLASS_SIZE", "WORLD_SIZE"),
        hosts=tuple(part for part in environ.get("WINDLASS_HOSTS", "").split(",") if part),
        checkpoint=Path(folder) if folder else None,
        array_index=int(array_index) if array_index else None,
    )


def report(
    fraction: float | None = None,
    metrics: Mapping[str, float] | None = None,
    *,
    checkpointed: bool = False,
    **more: float,
) -> None:
    """Reports the progress and the metrics of the job, which `windlass ps`, `get` and `why` show.

    `report(0.25, loss=1.7)`. Earlier metrics that are not given again stay. Outside a job it does
    nothing. It writes one small file, so call it as often as you like.

    `report(checkpointed=True)` reports a new checkpoint. The scheduler moves a movable run only
    soon after one, and prefers victims that lose the least work.
    """
    if fraction is not None and not 0 <= fraction <= 1:
        raise ValueError(f"fraction is {fraction}; it must be from 0 to 1")
    path = os.environ.get("WINDLASS_PROGRESS", "")
    with _lock:
        if fraction is not None:
            _reported.fraction = float(fraction)
        if checkpointed:
            _reported.checkpoint = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for name, value in {**(metrics or {}), **more}.items():
            number = float(value)
            if math.isfinite(number):
                _reported.metrics[name] = number
            else:
                _reported.metrics.pop(name, None)
        if len(_reported.metrics) > MOST_METRICS:
            _reported.metrics.clear()
            raise ValueError(
                f"more than {MOST_METRICS} metrics; use one name for all steps of a metric"
            )
        if path:
            _write(path)


def progress(iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
    """Yields the items, and reports the fraction that is done.

    >>> sum(progress([1, 2, 3]))
    6
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    reported = float("-inf")
    for done, item in enumerate(iterable):
        now = time.monotonic()
        if total and now - reported >= _EVERY:
            reported = now
            report(min(1.0, done / total))
        yield item
    report(1.0)


@dataclasses.dataclass
class _Reported:
    fraction: float | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    checkpoint: str | None = None


_lock = threading.Lock()
_reported = _Reported()


def _write(path: str) -> None:
    """Writes the file atomically: a reader never sees half a report."""
    content = {
        "fraction": _reported.fraction,
        "metrics": _reported.metrics,
        "checkpoint": _reported.checkpoint,
    }
    text = json.dumps({key: value for key, value in content.items() if value not in (None, {})})
    new = f"{path}.{os.getpid()}.new"
    # A report that cannot be written must not fail the job that it is about.
    with contextlib.suppress(OSError):
        Path(new).write_text(text)
        os.replace(new, path)


def _number(environ: Mapping[str, str], default: int, *names: str) -> int:
    for name in names:
        value = environ.get(name, "")
        if value.isdigit():
            return int(value)
    return default
