"""Traces in the shape of openb (a GPU cluster of 2023), and the published way to replay them.

Reads node lists, pod lists and arrival orders, plain or gzip. `replay` is the protocol of "Beware
of Fragmentation" (USENIX ATC'23): pods arrive one by one, each is tried once, none leaves; what
counts is how much of the devices is allocated when the arrived demand reaches so many percent.

`bench.packing` and the simulator call it. The public data come from
github.com/hkust-adsl/kubernetes-scheduler-simulator (data/csv, experiments/analysis).
"""

from __future__ import annotations

import collections
import csv
import dataclasses
import gzip
import io
import json
import os
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np

from windlass.core.packing import potential
from windlass.core.packing.potential import DemandShape, Fleet

PREFIX = "openb_pod_list_"
MOST = 1 << 53
"""The largest amount that a list may name."""
MOST_DEVICES = 1024
"""Of one node."""


class BadTrace(ValueError):
    """A file is malformed; the message names the file, the place and what is expected."""


@dataclasses.dataclass(frozen=True, slots=True)
class Pods:
    """A pod list, sorted by name."""

    names: tuple[str, ...]
    shapes: tuple[DemandShape, ...]

    def counts(self) -> dict[DemandShape, float]:
        """How often each shape is in the list."""
        found: dict[DemandShape, float] = {}
        for shape in self.shapes:
            found[shape] = found.get(shape, 0.0) + 1.0
        return found


@dataclasses.dataclass(frozen=True, slots=True)
class Nodes:
    """A node list, sorted by name."""

    names: tuple[str, ...]
    rows: tuple[tuple[int, int, int, str], ...]
    """cpu, memory, number of devices, model."""

    def fleet(self, rank: Sequence[int]) -> Fleet:
        """The nodes in the order in which ties are broken."""
        in_order = np.argsort(np.asarray(rank), kind="stable")
        return Fleet.of(self.rows[node] for node in in_order.tolist())


@dataclasses.dataclass(frozen=True, slots=True)
class Arrival:
    """In which order pods arrive, and how ties between nodes are broken."""

    seed: int
    order: tuple[int, ...]
    """Index into the pods sorted by name, for each arrival."""
    rank: tuple[int, ...]
    """Rank of each node sorted by name; the smaller wins."""


class Chooser(Protocol):
    """A policy during one replay."""

    def choose(self, shape: DemandShape) -> tuple[int, list[int]] | None:
        """Node and devices for the next pod, or None if it fits nowhere."""

    def place(self, shape: DemandShape, node: int, devices: list[int]) -> None:
        """The pod takes its capacity."""


@dataclasses.dataclass(frozen=True, slots=True)
class Curve:
    """Allocated percent of all devices, by arrived percent."""

    allocated: dict[int, float]
    placed: int
    """Pods that found capacity."""

    def unallocated(self, arrived: int) -> float | None:
        """Percent of devices left idle at this point; None if demand never got there. In a small
        cluster one pod is several percent: between two pods everything stays as it was."""
        if not self.allocated or arrived > max(self.allocated):
            return None
        before = max((point for point in self.allocated if point <= arrived), default=None)
        return 100.0 if before is None else round(100.0 - self.allocated[before], 2)


def folder() -> Path:
    """Where the public trace is expected: $WINDLASS_DATA/traces/fgd_atc23."""
    return Path(os.environ.get("WINDLASS_DATA", "../shared")) / "traces" / "fgd_atc23"


def lists(root: Path) -> list[str]:
    """Names of the pod lists in a trace folder that have arrival orders."""
    found = (path.name for path in (root / "orders").glob("order_*.jsonl*"))
    return sorted(name.removeprefix("order_").partition(".")[0] for name in found)


def read_nodes(path: Path) -> Nodes:
    """Columns sn, cpu_milli, memory_mib, gpu, and model if there are several."""
    found = sorted(
        (name, (row.number("cpu_milli"), row.number("memory_mib"), row.number("gpu", MOST_DEVICES),
                row.fields.get("model", "").strip()))
        for name, row in _named(path, "sn")
    )  # fmt: skip
    if not found:
        raise BadTrace(f"{path} has no nodes: give a node list with at least one row.")
    return Nodes(tuple(name for name, _ in found), tuple(row for _, row in found))


def read_pods(path: Path) -> Pods:
    """Columns name, cpu_milli, memory_mib, num_gpu, gpu_milli, and gpu_spec if models matter."""
    found = sorted(((name, _shape(row)) for name, row in _named(path, "name")), key=lambda p: p[0])
    if not found:
        raise BadTrace(f"{path} has no pods: give a pod list with at least one row.")
    return Pods(tuple(name for name, _ in found), tuple(shape for _, shape in found))


def read_arrivals(path: Path, nodes: Nodes, pods: Pods) -> list[Arrival]:
    """One JSON object per line with seed, order and node_rank."""
    found: list[Arrival] = []
    for number, line in enumerate(text_of(path).splitlines(), start=1):
        if not line.strip():
            continue
        try:
            fields = json.loads(line)
            arrival = Arrival(
                int(fields["seed"]), _whole(fields["order"]), _whole(fields["node_rank"])
            )
        except (ValueError, KeyError, TypeError) as problem:
            raise BadTrace(
                f"{path} line {number} is not an arrival order: it needs seed, order and "
                f"node_rank ({problem})."
            ) from problem
        where = f"{path} line {number}"
        _check(arrival, where, len(nodes.names), len(pods.names))
        if any(arrival.seed == other.seed for other in found):
            raise BadTrace(f"{where} has the seed {arrival.seed} of a line before: give another.")
        found.append(arrival)
    if not found:
        raise BadTrace(f"{path} has no arrival orders: give one JSON object a line.")
    return found


def replay(pods: Pods, arrival: Arrival, fleet: Fleet, chooser: Chooser) -> Curve:
    """Every pod is tried once in order and stays where it is put."""
    capacity = int(fleet.devices.sum())
    arrived = allocated = placed = 0
    events = np.zeros((len(arrival.order), 2), dtype=np.int64)
    for event, which in enumerate(arrival.order):
        shape = pods.shapes[which]
        arrived += shape.total
        choice = chooser.choose(shape)
        if choice is not None:
            chooser.place(shape, *choice)
            allocated += shape.total
            placed += 1
        events[event] = arrived, allocated
    return Curve(_discrete(events, max(1, capacity)), placed)


def _discrete(events: potential.Ints, capacity: int) -> dict[int, float]:
    """Mean allocated percent over the events at each whole percent of arrived demand."""
    percent = np.round(100.0 * events[:, 0] / capacity).astype(np.int64)
    share = np.round(100.0 * events[:, 1] / capacity, 2)
    return {
        int(point): round(float(share[percent == point].mean()), 2) for point in np.unique(percent)
    }


@dataclasses.dataclass(frozen=True, slots=True)
class _Row:
    """A line of a CSV file with its position for error messages."""

    where: str
    fields: dict[str, str]

    def text(self, column: str) -> str:
        value = self.fields.get(column)
        if value is None:
            raise BadTrace(
                f"{self.where} has no column {column!r}: add it to the header; there are "
                f"{', '.join(self.fields) or 'none'}."
            )
        return value.strip()

    def number(self, column: str, most: int = MOST) -> int:
        text = self.text(column)
        try:
            value = float(text or 0)
        except ValueError:
            value = -1.0
        if not (0 <= value <= most and value.is_integer()):
            raise BadTrace(
                f"{self.where}: {column} is {text!r}, it must be a whole number from 0 to {most}."
            )
        return int(value)


def _shape(row: _Row) -> DemandShape:
    count, milli = row.number("num_gpu"), row.number("gpu_milli")
    models = row.fields.get("gpu_spec") or ""
    try:
        return DemandShape(
            cpu=row.number("cpu_milli"),
            memory=row.number("memory_mib"),
            count=count if milli else 0,
            milli=milli if count else 0,
            models=tuple(sorted(filter(None, models.strip().split("|")))) if count else (),
        )
    except BadTrace:
        raise
    except ValueError as problem:
        raise BadTrace(f"{row.where}: {problem}") from problem


def _check(arrival: Arrival, where: str, nodes: int, pods: int) -> None:
    if len(arrival.rank) != nodes:
        raise BadTrace(f"{where} ranks {len(arrival.rank)} nodes, but the node list has {nodes}.")
    twice = [rank for rank, count in collections.Counter(arrival.rank).items() if count > 1]
    if twice:
        raise BadTrace(
            f"{where} gives several nodes the rank {twice[0]}: give each its own in node_rank."
        )
    if not arrival.order:
        raise BadTrace(f"{where} orders no pods: name at least one in order.")
    wrong = [index for index in arrival.order if not 0 <= index < pods]
    if wrong:
        raise BadTrace(f"{where} names pod {wrong[0]}, but the pod list has 0 to {pods - 1}.")


def _whole(values: Sequence[object]) -> tuple[int, ...]:
    found = tuple(value for value in values if type(value) is int)
    if len(found) != len(values):
        raise ValueError("order and node_rank are lists of whole numbers")
    return found


def _named(path: Path, column: str) -> Iterator[tuple[str, _Row]]:
    """Rows with their names, of which each must be there once."""
    seen: set[str] = set()
    for number, fields in table(path):
        row = _Row(f"{path} line {number}", fields)
        name = row.text(column)
        if not name or name in seen:
            problem = f"is {name!r}, which is there already" if name else "is empty"
            raise BadTrace(f"{row.where}: {column} {problem}: give every row a name of its own.")
        seen.add(name)
        yield name, row


def text_of(path: Path) -> str:
    """The text of a file, plain or gzip."""
    try:
        raw = path.read_bytes()
        return (gzip.decompress(raw) if raw[:2] == b"\x1f\x8b" else raw).decode("utf-8-sig")
    except (UnicodeDecodeError, EOFError, zlib.error, gzip.BadGzipFile) as problem:
        raise BadTrace(f"{path} is no text, plain or gzip: {problem}.") from problem
    except OSError as problem:
        raise BadTrace(f"{path} cannot be read: {problem.strerror or problem}.") from problem


def table(path: Path) -> Iterator[tuple[int, dict[str, str]]]:
    """Lines of a CSV file by column: separated by comma, semicolon or tab, names in any case."""
    text = text_of(path)
    head = text.partition("\n")[0]
    rows = csv.DictReader(io.StringIO(text, newline=""), delimiter=max(",;\t", key=head.count))
    try:
        for row in rows:
            yield (
                rows.line_num,
                {k.strip().lower(): v or "" for k, v in row.items() if k is not None},
            )
    except csv.Error as problem:
        raise BadTrace(f"{path} line {rows.line_num} is no CSV: {problem}.") from problem
