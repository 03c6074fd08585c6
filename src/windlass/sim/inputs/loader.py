"""Scenarios from what a user names: a public trace, a file, or the state of a platform.

Public traces are searched below `WINDLASS_DATA` (default ../shared); where they are missing the
error names them and their publishers. Every one of them can also be given by path.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable
from pathlib import Path

from windlass.core.model.types import Node
from windlass.sim.inputs import builders, csv_traces, openb, state_export, yaml_scenario
from windlass.sim.scenario import BadInput, Job, Scenario

ORIGINS = {
    "itp": "the Microsoft ITP job traces published with ElasticFlow (ASPLOS'23), "
    "github.com/microsoft/elasticflow-traces",
    "philly": "the Microsoft Philly jobs published with Pollux (OSDI'21), "
    "github.com/petuum/adaptdl, branch osdi21-artifact",
    "muri": "the traces published with Muri (SIGCOMM'22), github.com/Rivendile/Muri",
    "openb": "the openb trace published with FGD (USENIX ATC'23), "
    "github.com/hkust-adsl/kubernetes-scheduler-simulator",
}
FOLDERS = {
    "itp": "elasticflow_ms_itp",
    "philly": "philly_via_pollux",
    "muri": "muri_sigcomm22",
    "openb": "fgd_atc23",
}
MURI_NODES = 8
"""The published protocol has 8 nodes of 8 GPUs."""
FIRST = {"itp": "02", "muri": "trace1"}
"""The part that is played where none is named."""
OPENB_NODES = "openb_node_list_gpu_node.csv.gz"


class NoSuchTrace(BadInput):
    """A public trace that is not here."""


@dataclasses.dataclass(frozen=True, slots=True)
class Hardware:
    """The user's options for the cluster of a trace."""

    nodes: int = 0
    """0: sized so that mean demand is 80 % of it."""
    gpus: int = 8
    rack: int = 0
    node_list: Path | None = None


def open_source(name: str, hardware: Hardware = Hardware()) -> Scenario:  # noqa: B008
    """A public trace by name (`itp/02`, `philly/6214e9`, `muri/trace1`, `openb/default`), a job
    list (CSV) or a described cluster (YAML)."""
    family, _, part = name.partition("/")
    path = Path(name)
    if path.suffix in (".yaml", ".yml"):
        return yaml_scenario.read(path)
    if path.exists() or family not in FOLDERS:
        return _job_list(path.name.partition(".")[0], path, "", hardware)
    return _public(family, part, hardware)


def open_state(path: Path, assumed: float = state_export.ASSUMED) -> Scenario:
    """The exported state of a platform."""
    try:
        text = path.read_bytes()
    except OSError as problem:
        raise BadInput(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    return state_export.scenario(
        state_export.loads(text, str(path)), path.name.partition(".")[0], assumed
    )


def open_pods(
    nodes: Path, pods: Path, orders: Path | None = None, seed: int | None = None
) -> Scenario:
    """Node and pod lists in openb's form; with arrival orders, pods come one by one and stay."""
    try:
        machines = csv_traces.read_nodes(nodes)
        arrival = None
        if orders is not None:
            arrival = _arrival(nodes, pods, orders, seed)
        jobs = csv_traces.read_pods(pods, arrival)
    except openb.BadTrace as problem:
        raise BadInput(str(problem)) from problem
    name = pods.name.partition(".")[0].removeprefix(openb.PREFIX)
    return builders.on_cluster(name, jobs, machines)


def data_folder() -> Path:
    return Path(os.environ.get("WINDLASS_DATA", "../shared")) / "traces"


def missing(family: str) -> str | None:
    """The message when the public data of a family is missing; None when it is there."""
    folder = data_folder() / FOLDERS[family]
    if folder.is_dir():
        return None
    return (
        f"{folder} is not there. It holds {ORIGINS[family]}. Get it from there and point "
        "WINDLASS_DATA at the folder above traces/, or give the file by its path."
    )


def _refuse_unknown(family: str, part: str, names: Iterable[str]) -> None:
    known = sorted(names)
    if part not in known:
        raise NoSuchTrace(f"There is no trace {family}/{part}: there are {', '.join(known)}.")


def _public(family: str, part: str, hardware: Hardware) -> Scenario:
    problem = missing(family)
    if problem:
        raise NoSuchTrace(problem)
    root = data_folder() / FOLDERS[family]
    if family == "openb":
        listed = root.glob(f"csv/{openb.PREFIX}*")
        found = (path.name.removeprefix(openb.PREFIX).partition(".")[0] for path in listed)
        _refuse_unknown(family, part or "default", found)
        pods = root / "csv" / f"{openb.PREFIX}{part or 'default'}.csv.gz"
        return open_pods(hardware.node_list or root / "csv" / OPENB_NODES, pods)
    if family == "philly":
        path = root / "philly_public_vcs.csv.gz"
        try:
            return _job_list(f"philly {part}".strip(), path, part, hardware)
        except csv_traces.NoSuchQueue as unknown:  # its parts are queues of one list
            _refuse_unknown(family, part, unknown.known)
            raise
    chosen = part or FIRST[family]
    files = _job_lists(family, root)
    _refuse_unknown(family, chosen, files)
    if family == "muri" and not hardware.nodes:
        hardware = dataclasses.replace(hardware, nodes=MURI_NODES)
    return _job_list(f"{family} {chosen}", files[chosen], "", hardware)


def _job_lists(family: str, root: Path) -> dict[str, Path]:
    """The job lists of a folder by their names, with which clusters of ITP have a prefix."""
    prefix = "cluster" if family == "itp" else ""
    return {path.name.removesuffix(".csv.gz").removeprefix(prefix): path
            for path in root.glob("*.csv.gz")}  # fmt: skip


def _job_list(name: str, path: Path, queue: str, hardware: Hardware) -> Scenario:
    jobs = csv_traces.read_jobs(path, hardware.gpus, queue)
    return builders.on_cluster(name, jobs, _machines(jobs, hardware))


def _machines(jobs: list[Job], hardware: Hardware) -> tuple[Node, ...]:
    if hardware.node_list is not None:
        try:
            return csv_traces.read_nodes(hardware.node_list)
        except openb.BadTrace as problem:
            raise BadInput(str(problem)) from problem
    count = hardware.nodes or builders.nodes_needed(jobs, hardware.gpus)
    return builders.cluster(count, builders.NodeForm(hardware.gpus), hardware.rack)


def _arrival(nodes: Path, pods: Path, orders: Path, seed: int | None) -> openb.Arrival:
    found = openb.read_arrivals(orders, openb.read_nodes(nodes), openb.read_pods(pods))
    for arrival in found:
        if seed is None or arrival.seed == seed:
            return arrival
    seeds = ", ".join(str(arrival.seed) for arrival in found)
    raise BadInput(f"{orders} has no arrival order with seed {seed}: it has {seeds}.")
