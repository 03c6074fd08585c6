"""A small Prometheus registry: counters, gauges, histograms with fixed buckets, text exposition.

Controllers and the server count here; `/metrics` of each process renders it. It keeps numbers only:
no threads, no push, no process collectors.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

Labels = tuple[str, ...]

EXPOSITION = "text/plain; version=0.0.4; charset=utf-8"
"""The content type of `Registry.render`."""
SECONDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1.0, 5.0, 10.0, 60.0, 300.0)
"""Buckets for how long something took, from a quick reconcile to a stuck one."""


class Registry:
    """All metrics of a process. Asking twice for the same name gives the same metric."""

    def __init__(self) -> None:
        self._metrics: dict[str, Counter | Gauge | Histogram] = {}

    def counter(self, name: str, text: str, labels: Sequence[str] = ()) -> Counter:
        metric = self._metrics.setdefault(name, Counter(name, text, tuple(labels)))
        assert isinstance(metric, Counter), f"{name} is already another type of metric"  # noqa: S101
        return metric

    def gauge(self, name: str, text: str, labels: Sequence[str] = ()) -> Gauge:
        metric = self._metrics.setdefault(name, Gauge(name, text, tuple(labels)))
        assert isinstance(metric, Gauge), f"{name} is already another type of metric"  # noqa: S101
        return metric

    def histogram(
        self, name: str, text: str, labels: Sequence[str] = (), buckets: Sequence[float] = SECONDS
    ) -> Histogram:
        fresh = Histogram(name, text, tuple(labels), tuple(buckets))
        metric = self._metrics.setdefault(name, fresh)
        assert isinstance(metric, Histogram), f"{name} is already another type of metric"  # noqa: S101
        return metric

    def render(self) -> str:
        """The text exposition format, version 0.0.4."""
        lines: list[str] = []
        for name in sorted(self._metrics):
            metric = self._metrics[name]
            lines += [f"# HELP {name} {_escape_help(metric.text)}", f"# TYPE {name} {metric.type}"]
            lines += metric.lines()
        return "\n".join(lines) + "\n" if lines else ""


class _Numbers:
    """One number per combination of label values."""

    type = "untyped"

    def __init__(self, name: str, text: str, labels: Labels) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._values: dict[Labels, float] = {}

    def value(self, *labels: str) -> float:
        return self._values.get(self._checked(labels), 0.0)

    def lines(self) -> Iterable[str]:
        for values, number in sorted(self._values.items()):
            yield f"{self.name}{_braces(self.labels, values)} {_number(number)}"

    def _checked(self, labels: Labels) -> Labels:
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, got {labels}")
        return labels


class Counter(_Numbers):
    """Only ever grows."""

    type = "counter"

    def add(self, *labels: str, by: float = 1.0) -> None:
        if by < 0:
            raise ValueError(f"{self.name} is a counter and cannot go down by {-by}")
        key = self._checked(labels)
        self._values[key] = self._values.get(key, 0.0) + by


class Gauge(_Numbers):
    """Goes up and down."""

    type = "gauge"

    def set(self, *labels: str, to: float) -> None:
        self._values[self._checked(labels)] = to

    def replace(self, values: Mapping[Labels, float]) -> None:
        """Replaces all series: those that are not given are removed."""
        self._values = {self._checked(labels): value for labels, value in values.items()}


@dataclasses.dataclass(slots=True)
class _Series:
    counts: list[int]
    total: float = 0.0


class Histogram:
    """How often a value fell into each bucket, and the sum of all values."""

    type = "histogram"

    def __init__(self, name: str, text: str, labels: Labels, buckets: tuple[float, ...]) -> None:
        self.name, self.text, self.labels = name, text, labels
        self._bounds = tuple(sorted(buckets))
        self._series: dict[Labels, _Series] = {}

    def observe(self, *labels: str, value: float) -> None:
        if len(labels) != len(self.labels):
            raise ValueError(f"{self.name} has the labels {self.labels}, got {labels}")
        series = self._series.setdefault(labels, _Series([0] * (len(self._bounds) + 1)))
        series.counts[bisect.bisect_left(self._bounds, value)] += 1
        series.total += value

    def count(self, *labels: str) -> int:
        series = self._series.get(labels)
        return sum(series.counts) if series else 0

    def lines(self) -> Iterable[str]:
        names = (*self.labels, "le")
        for values, series in sorted(self._series.items()):
            running = 0
            for bound, count in zip((*self._bounds, float("inf")), series.counts, strict=True):
                running += count
                braces = _braces(names, (*values, _number(bound)))
                yield f"{self.name}_bucket{braces} {running}"
            plain = _braces(self.labels, values)
            yield f"{self.name}_sum{plain} {_number(series.total)}"
            yield f"{self.name}_count{plain} {running}"


def _braces(names: Labels, values: Labels) -> str:
    if not names:
        return ""
    pairs = ",".join(f'{n}="{_escape(v)}"' for n, v in zip(names, values, strict=True))
    return "{" + pairs + "}"


def _escape(value: str) -> str:
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def _escape_help(text: str) -> str:
    return text.replace("\\", r"\\").replace("\n", r"\n")


def _number(value: float) -> str:
    if value == float("inf"):
        return "+Inf"
    return str(int(value)) if value == int(value) else repr(value)
