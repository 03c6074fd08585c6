"""Job lists and pod lists from files: arrival, request and duration of each job.

A job list is a CSV file with a header, plain or gzip. Its columns are recognised by name (see
`COLUMNS`), so the public traces of ElasticFlow (Microsoft ITP), Pollux (Philly) and Muri are read
as they are. Pod and node lists in openb's form are read through `sim.inputs.openb`.
"""

from __future__ import annotations

import datetime
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from windlass.core.model import validation
from windlass.core.model.types import DeviceRequest, Node, Role, Workload
from windlass.core.packing.potential import DemandShape
from windlass.kinds.values import quantity
from windlass.sim.inputs import builders, job_columns, job_spec, openb
from windlass.sim.scenario import FOREVER, BadInput, Job

COLUMNS: dict[str, tuple[str, ...]] = {
    "id": ("job_id", "id", "name"),
    "submitted": ("submit_time", "submission_time", "submitted", "timestamp", "creation_time"),
    "duration": ("duration", "runtime"),
    "end": ("end_time", "deletion_time"),
    "gpus": ("num_gpu", "num_gpus", "gpus"),
    "members": ("members",),
    "cpu": ("cpu",),
    "memory": ("memory",),
    "queue": ("queue", "cluster", "vc"),
    "user": ("user",),
    "priority": ("priority",),
    "expected": ("expected",),
}
"""What a job list may say, and the names under which it is known."""
MILLISECONDS = "iteration_time"
"""A job list with this column is Muri's: its times are milliseconds, its priority is a class."""
MOST_COUNT = 1_000_000
"""Members, or GPUs, of one job."""
MOST_CPUS, MOST_GIB = 1 << 20, 1 << 24
"""Of one node."""


class NoSuchQueue(BadInput):
    """A job list has no jobs of the queue that was asked for."""

    def __init__(self, message: str, known: list[str]) -> None:
        super().__init__(message)
        self.known = known


def read_jobs(path: Path, gpus_per_node: int = 8, queue: str = "") -> list[Job]:
    """The jobs of a list, by time; with `queue`, only those of that queue."""
    lines = lines_of(path)
    rows = [row for _, row in lines]
    header = set(rows[0]) if rows else set()
    found = {
        what: name for what, names in COLUMNS.items() for name in reversed(names) if name in header
    }
    cells = job_columns.columns(header)
    needed = ("submitted",) if cells.keys() & job_columns.WITHOUT_GPUS else ("submitted", "gpus")
    for what in needed:
        if rows and what not in found:
            raise BadInput(
                f"{path} has no column for {what!r}: call it {' or '.join(COLUMNS[what])}; there "
                f"are {', '.join(rows[0])}."
            )
    if rows and not {"duration", "end"} & found.keys():
        raise BadInput(
            f"{path} says nothing about durations: give a column `duration` (seconds); there are "
            f"{', '.join(rows[0])}."
        )
    if not rows:
        raise BadInput(f"{path} has no jobs: give a header and at least one row.")
    roles = builders.Roles(gpus_per_node)
    muri = MILLISECONDS in header
    reader = _JobReader(path, found, cells, roles, 1000.0 if muri else 1.0, ranked=not muri)
    chosen = [
        reader.job(number, row) for number, row in lines if not queue or reader.queue(row) == queue
    ]
    if queue and not chosen:
        known = sorted({reader.queue(row) for row in rows})
        raise NoSuchQueue(f"{path} has no queue {queue!r}: it has {', '.join(known[:12])}.", known)
    return sorted(chosen, key=lambda job: (job.workload.submitted, job.workload.key))


def read_pods(
    pods: Path, arrival: openb.Arrival | None = None, *, queue: str = "default"
) -> list[Job]:
    """Pods of an openb list: with their own times, or (`arrival`) one by one and without end."""
    listed = openb.read_pods(pods)
    roles = builders.Roles()
    demand = [role_of_pod(roles, shape) for shape in listed.shapes]
    if arrival is not None:
        return [
            Job(Workload(f"{listed.names[pod]}-{at:05}", queue, (demand[pod],), float(at)), FOREVER)
            for at, pod in enumerate(arrival.order)
        ]
    times = {row["name"].strip(): (f"{pods} line {line}", row) for line, row in lines_of(pods)}
    jobs = []
    for at, name in enumerate(listed.names):
        where, row = times[name]
        begin = _moment(where, "creation_time", row.get("creation_time", ""), float(at))
        end = _moment(where, "deletion_time", row.get("deletion_time", ""), FOREVER)
        lasts = _between(where, begin, end)
        expected = None if lasts == FOREVER else lasts
        jobs.append(Job(Workload(name, queue, (demand[at],), begin, expected=expected), lasts))
    return sorted(jobs, key=lambda job: (job.workload.submitted, job.workload.key))


def read_nodes(path: Path) -> tuple[Node, ...]:
    """Nodes of an openb list, or of Muri's one-line form: so many alike behind each switch."""
    lines = lines_of(path)
    if lines and "num_node_p_switch" in lines[0][1]:
        return _behind_switches(path, lines[0][1])
    listed = openb.read_nodes(path)
    return tuple(
        builders.NodeForm(
            gpus, model, 16384 if gpus else 0, cpu, memory << 20, {"model": model} if model else {}
        ).node(name)
        for name, (cpu, memory, gpus, model) in zip(listed.names, listed.rows, strict=True)
    )


def _behind_switches(path: Path, row: Mapping[str, str]) -> tuple[Node, ...]:
    names = ("num_switch", "num_node_p_switch", "num_gpu_p_node", "num_cpu_p_node", "mem_p_node")
    try:
        switches, nodes, gpus, cpus, memory = (int(row[name]) for name in names)
    except (KeyError, ValueError) as problem:
        raise BadInput(f"{path} must give whole numbers for {', '.join(names)}.") from problem
    if not (switches > 0 < nodes and switches * nodes <= builders.MOST_NODES):
        raise BadInput(
            f"{path}: {switches} switches with {nodes} nodes each are no cluster: give 1 to "
            f"{builders.MOST_NODES} nodes."
        )
    if not (0 <= gpus <= openb.MOST_DEVICES and 0 <= cpus <= MOST_CPUS and 0 <= memory <= MOST_GIB):
        raise BadInput(
            f"{path}: a node has 0 to {openb.MOST_DEVICES} GPUs, {MOST_CPUS} CPUs and {MOST_GIB} "
            f"GiB; this one has {gpus}, {cpus} and {memory}."
        )
    form = builders.NodeForm(gpus, cpu=cpus * 1000, memory=memory * builders.GIB)
    return builders.cluster(switches * nodes, form, rack=nodes)


def lines_of(path: Path) -> list[tuple[int, dict[str, str]]]:
    """All rows of a CSV file, plain or gzip, with the lines at which they end."""
    try:
        return list(openb.table(path))
    except openb.BadTrace as problem:
        raise BadInput(str(problem)) from problem


class _JobReader:
    """Rows of one file into jobs."""

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str],
        cells: Mapping[str, str],
        roles: builders.Roles,
        scale: float,
        *,
        ranked: bool,
    ) -> None:
        self.path, self.columns, self.roles, self.scale = path, columns, roles, scale
        self.ranked = ranked
        self.cells = cells
        self._builder = job_spec.Builder()

    def job(self, number: int, row: Mapping[str, str]) -> Job:
        where = f"{self.path} line {number}"
        submitted = self._time(where, row, "submitted")
        if "duration" in self.columns:
            duration = self._number(where, row, "duration") / self.scale
        else:
            duration = _between(where, submitted, self._time(where, row, "end"))
        key = f"{number:07}-{self._text(row, 'id') or 'job'}"
        cells = job_columns.given(row, self.cells)
        if cells:
            base = self._base(where, row, cells, submitted, duration)
            return job_columns.job(where, key, base, cells, self._builder)
        gpus, part = self._gpus(where, row)
        needs = self._needs(where, row)
        members = self._count(where, row, "members", 1, 1)
        role = self.roles.of_gpus(gpus, needs)
        if members > 1 or part:
            each = (DeviceRequest("gpu", max(1, gpus), compute=part),) if gpus or part else ()
            role = self.roles.of(members, needs, each)
        workload = Workload(
            key,
            self.queue(row),
            (role,),
            submitted,
            self._text(row, "user"),
            priority=self._count(where, row, "priority", 0, 50) if self.ranked else 50,
            expected=self._expected(where, row, duration),
            history_key=self._text(row, "user"),
        )
        return Job(workload, duration)

    def _base(
        self,
        where: str,
        row: Mapping[str, str],
        cells: Mapping[str, str],
        submitted: float,
        duration: float,
    ) -> dict[str, Any]:
        """What the plain columns say, in the fields of a described job."""
        base: dict[str, Any] = {
            "name": self._text(row, "id") or "job", "at": submitted, "duration": duration,
            "queue": self.queue(row), "user": self._text(row, "user"),
            "expected": self._expected(where, row, duration),
            "priority": self._count(where, row, "priority", 0, 50) if self.ranked else 50,
        }  # fmt: skip
        base |= {what: text for what in ("cpu", "memory") if (text := self._text(row, what))}
        if not self._text(row, "gpus") and cells.keys() & job_columns.WITHOUT_GPUS:
            return base
        gpus, part = self._gpus(where, row)
        if part:
            base["devices"] = [{"kind": "gpu", "compute": max(1, round(part / 10))}]
            return base
        members = self._count(where, row, "members", 1, 1)
        if members == 1 and not cells.keys() & {"replicas", "minreplicas", "most"}:
            role = self.roles.of_gpus(gpus)
            members, gpus = role.min_count, role.devices[0].count if role.devices else 0
        if not cells.keys() & {"replicas", "minreplicas"}:
            base["members"] = members
        return base | {"gpus": gpus}

    def _expected(self, where: str, row: Mapping[str, str], duration: float) -> float | None:
        text = self._text(row, "expected")
        if text == "unknown":
            return None
        return self._number(where, row, "expected") if text else duration

    def queue(self, row: Mapping[str, str]) -> str:
        return self._text(row, "queue") or "default"

    def _gpus(self, where: str, row: Mapping[str, str]) -> tuple[int, int]:
        """Whole GPUs, or thousandths of one."""
        count = self._number(where, row, "gpus")
        if 0 < count < 1:
            return 0, max(1, round(1000 * count))
        if not count.is_integer() or count > MOST_COUNT:
            raise BadInput(
                f"{where}: gpus is {self._text(row, 'gpus')!r}, it must be a part of one, or whole "
                f"and at most {MOST_COUNT}."
            )
        return int(count), 0

    def _count(self, where: str, row: Mapping[str, str], what: str, least: int, usual: int) -> int:
        value = self._number(where, row, what, float(usual))
        if not (value.is_integer() and least <= value <= MOST_COUNT):
            raise BadInput(
                f"{where}: {what} is {self._text(row, what)!r}, it must be a whole number from "
                f"{least} to {MOST_COUNT}."
            )
        return int(value)

    def _needs(self, where: str, row: Mapping[str, str]) -> dict[str, int]:
        needs: dict[str, int] = {}
        readers = {"cpu": quantity.milli, "memory": quantity.whole}
        for what, read in readers.items():
            if text := self._text(row, what):
                try:
                    needs[what] = read(text)
                except quantity.Malformed as problem:
                    raise BadInput(f"{where}: {what} is {text!r}: {problem}.") from problem
                if needs[what] > openb.MOST:
                    raise BadInput(f"{where}: {what} is {text!r}, more than any node could have.")
        return needs

    def _text(self, row: Mapping[str, str], what: str) -> str:
        return row.get(self.columns.get(what, ""), "").strip()

    def _number(
        self, where: str, row: Mapping[str, str], what: str, default: float | None = None
    ) -> float:
        text = self._text(row, what)
        if not text and default is not None:
            return default
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not 0 <= value <= validation.MOST_SECONDS:
            raise BadInput(
                f"{where}: {what} is {text!r}, it must be a number from 0 to "
                f"{validation.MOST_SECONDS:.0e}."
            )
        return value

    def _time(self, where: str, row: Mapping[str, str], what: str) -> float:
        text = self._text(row, what)
        return _moment(where, what, text, None, self.scale, -validation.MOST_SECONDS)


def role_of_pod(roles: builders.Roles, shape: DemandShape) -> Role:
    """What a pod of an openb list asks for."""
    requests: tuple[DeviceRequest, ...] = ()
    if shape.count:
        part = 0 if shape.milli >= 1000 else shape.milli
        requests = (DeviceRequest("gpu", shape.count, compute=part, models=shape.models),)
    return roles.of(1, {"cpu": shape.cpu, "memory": shape.memory << 20}, requests)


def _moment(
    where: str,
    what: str,
    text: str,
    default: float | None,
    scale: float = 1.0,
    least: float = 0.0,
) -> float:
    """Seconds, or a date and time (read as UTC when it names no zone)."""
    text = text.strip()
    if not text and default is not None:
        return default
    try:
        try:
            value = float(text) / scale
        except ValueError:
            moment = datetime.datetime.fromisoformat(text)
            if moment.tzinfo is None:
                moment = moment.replace(tzinfo=datetime.UTC)
            value = moment.timestamp()
    except (ValueError, OverflowError):
        value = math.nan
    if not least <= value <= validation.MOST_SECONDS:
        allowed = "seconds" if least else "seconds from 0 up"
        raise BadInput(
            f"{where}: {what} is {text!r}, it must be {allowed} or a date such as "
            "2017-10-09 07:01:55."
        )
    return value


def _between(where: str, submitted: float, end: float) -> float:
    if end < submitted:
        raise BadInput(
            f"{where}: it ends at {end:.16g} s, before it was submitted at {submitted:.16g} s: "
            "correct one of them."
        )
    return end - submitted
