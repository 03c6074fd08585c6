"""For programs that run as a job: who am I, and how far am I. Standard library only.

All of it also works outside a job: then the program is the only member of itself.
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
"""Seconds between two looks of `progress` at its place: nobody reads faster."""


@dataclasses.dataclass(frozen=True, slots=True)
class Context:
    """Which member of which run this process is."""

    run: str
    """Name of the run; "" outside a job."""
    attempt: int
    """0 for the first start. A later one may find what an earlier one left."""
    role: str
    index: int
    """This member's place in its role."""
    rank: int
    """Its place in the whole run."""
    size: int
    """How many members there are."""
    hosts: tuple[str, ...]
    """Where they are, by rank; empty if nobody said."""
    checkpoint: Path | None
    """Where to keep what must outlive this attempt."""

    @property
    def inside(self) -> bool:
        """Whether this is a job at all."""
        return bool(self.run)


def context(environ: Mapping[str, str] = os.environ) -> Context:
    """Who this process is.

    >>> me = context({"WINDLASS_RUN": "train", "WINDLASS_RANK": "1", "WINDLASS_SIZE": "4"})
    >>> me.run, me.rank, me.size, me.attempt
    ('train', 1, 4, 0)
    """
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
    )


def report(
    fraction: float | None = None,
    metrics: Mapping[str, float] | None = None,
    *,
    checkpointed: bool = False,
    **more: float,
) -> None:
    """Tells how far the job is and what it measured: `windlass ps`, `get` and `why` show it.

    `report(0.25, loss=1.7)`. What was reported before and is not named again stays. Outside a job
    it does nothing. Cheap: it writes one small file, so call it as often as you like.

    `report(checkpointed=True)` says that the state was just saved. A run that allows moves is moved
    only soon after that, and of runs that may be preempted the one that loses the least work goes.
    """
    if fraction is not None and not 0 <= fraction <= 1:
        raise ValueError(f"fraction is {fraction}; it goes from 0 to 1")
    path = os.environ.get("WINDLASS_PROGRESS", "")
    with _lock:
        if fraction is not None:
            _said.fraction = float(fraction)
        if checkpointed:
            _said.checkpoint = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        for name, value in {**(metrics or {}), **more}.items():
            number = float(value)
            if math.isfinite(number):
                _said.metrics[name] = number
            else:
                _said.metrics.pop(name, None)
        if len(_said.metrics) > MOST_METRICS:
            _said.metrics.clear()
            raise ValueError(
                f"more than {MOST_METRICS} metrics; a metric is a series, not a step: use one name"
            )
        if path:
            _write(path)


def progress(iterable: Iterable[T], total: int | None = None) -> Iterator[T]:
    """The items, while reporting how many of them are done.

    >>> sum(progress([1, 2, 3]))
    6
    """
    if total is None and isinstance(iterable, Sized):
        total = len(iterable)
    told = float("-inf")
    for done, item in enumerate(iterable):
        now = time.monotonic()
        if total and now - told >= _EVERY:
            told = now
            report(min(1.0, done / total))
        yield item
    report(1.0)


@dataclasses.dataclass(slots=True)
class _Said:
    fraction: float | None = None
    metrics: dict[str, float] = dataclasses.field(default_factory=dict)
    checkpoint: str | None = None


_lock = threading.Lock()
_said = _Said()


def _write(path: str) -> None:
    """Whole or not at all: whoever reads it never sees half a report."""
    content = {
        "fraction": _said.fraction,
        "metrics": _said.metrics,
        "checkpoint": _said.checkpoint,
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
