"""How much of a GPU cluster stays idle under each placement rule, by the published protocol.

Pods of the openb trace arrive one by one on 1,213 nodes, none leaves, none is tried twice
(`windlass.sim.inputs.openb`); what is measured is the unallocated part of all GPUs when the arrived
demand is 100 and 130 % of them. `windlass` knows how often each shape is in the list, as the
published policies do; `windlass-learned` starts from nothing and learns while pods arrive. FGD and
BestFit are the published figures of the same list and seed. For other people's traces (--nodes,
--pods, --orders) there are none, and our own FGD, which equals the published one, runs beside.

`--policies windlass-decide` gives every pod to the deciding core as the platform does
(`bench.packing_decide`). It finds what `windlass-learned` finds but for what docs/design/packing.md
names, and takes several times as long, so it runs only when it is asked for.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import csv
import dataclasses
import gzip
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

from bench import packing_decide, packing_fgd, packing_learned, report
from windlass.core.packing import fragmentation_packer, potential
from windlass.sim.inputs import openb

POINTS = (100, 130)
POLICIES = ("windlass", "windlass-learned")
LIVE = "windlass-decide"
PARTS = ("fragments", "stranded", "holes", "scarcity", "balance", "band")
PUBLISHED_SECONDS = 600.0
"""One experiment in the published simulator takes about 10 minutes."""
PUBLISHED = {"06-FGD": "fgd", "05-BestFit": "bestfit"}
QUICK_LISTS = ("default", "cpu250", "gpushare100", "gpuspec33", "multigpu50")
QUICK_SEEDS = (42,)
ABSENT = """\
{folder} is not there. It holds the public openb trace with arrival orders: point WINDLASS_DATA \
at the folder above traces/, or give --nodes, --pods and --orders. The trace and the published \
figures come from github.com/hkust-adsl/kubernetes-scheduler-simulator (data/csv and \
experiments/analysis/expected_results)."""


@dataclasses.dataclass(frozen=True, slots=True)
class Trace:
    """Files of one pod list."""

    name: str
    nodes: Path
    pods: Path
    orders: Path


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    trace: Trace
    seed: int
    policy: str
    weights: potential.Weights


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lists", nargs="+", metavar="NAME", help="pod lists (default: all)")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N", help="default: all there are")
    parser.add_argument(
        "--policies", nargs="+", choices=(*POLICIES, LIVE), default=list(POLICIES),
        help=f"default: {' '.join(POLICIES)}",
    )  # fmt: skip
    parser.add_argument(
        "--without", nargs="+", choices=PARTS, default=[], help="parts of our rule to leave out"
    )
    parser.add_argument("--nodes", type=Path, metavar="FILE", help="another node list")
    parser.add_argument("--pods", type=Path, metavar="FILE", help="another pod list")
    parser.add_argument("--orders", type=Path, metavar="FILE", help="its arrival orders")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="experiments at a time"
    )


def measure(options: report.Options) -> report.Report:
    found = report.Report()
    try:
        experiments, published = _plan(options)
        found.rows = published + _run_all(experiments, options.extra.jobs)
    except openb.BadTrace as problem:
        raise SystemExit(f"bench.packing: {problem}") from problem
    found.rows.sort(key=lambda row: (row["list"], row["seed"], row["policy"]))
    for policy in options.extra.policies:
        found.ratios.update(_ratios(found.rows, policy))
    if not options.extra.json:
        found.rows = _means(found.rows)
        found.notes.append("Means over seeds; --json has a row for each list, seed and policy.")
    return found


def policy_named(
    name: str,
    fleet: potential.Fleet,
    pods: openb.Pods,
    weights: potential.Weights | None = None,
) -> openb.Chooser:
    """A policy at the beginning of a replay."""
    if name == "fgd":
        return packing_fgd.Fgd(fleet, pods.counts())
    if name == LIVE:
        return packing_decide.Deciding(fleet)
    if name == "windlass-learned":
        return packing_learned.LearningPacker(fleet, weights)
    demand = potential.Demand(pods.counts())
    return fragmentation_packer.Packer(fleet, potential.build(demand, fleet, weights))


def weights_without(parts: Iterable[str]) -> potential.Weights:
    """The rule less some parts. Without a band, gains differ if their table entries do."""
    finest = 1.0 / potential.UNIT
    left_out = {part: finest if part == "band" else 0.0 for part in parts}
    return dataclasses.replace(potential.Weights(), **left_out)


def published(
    path: Path, lists: Iterable[str], seeds: Sequence[int] | None
) -> Iterator[report.Row]:
    """Rows of the published table for these lists and seeds (None: all)."""
    wanted = {openb.PREFIX + name: name for name in lists}
    with gzip.open(path, "rt") as lines:
        for row in csv.DictReader(lines):
            policy = PUBLISHED.get(row["sc_policy"])
            if row["workload"] not in wanted or policy is None:
                continue
            if seeds is None or int(row["seed"]) in seeds:
                yield {
                    "list": wanted[row["workload"]],
                    "seed": int(row["seed"]),
                    "policy": policy,
                    **{_key(at): round(100.0 - float(row[str(at)]), 2) for at in POINTS},
                    "source": "published",
                }


def _plan(options: report.Options) -> tuple[list[Experiment], list[report.Row]]:
    """What to run, and what others published of the same."""
    given = options.extra
    if given.without and LIVE in given.policies:
        raise SystemExit(f"bench.packing: {LIVE} knows the whole rule only: leave out --without.")
    weights = weights_without(given.without)
    seeds = given.seeds or (list(QUICK_SEEDS) if options.quick and not given.pods else None)
    if given.nodes or given.pods or given.orders:
        if not (given.nodes and given.pods and given.orders):
            raise SystemExit("bench.packing: --nodes, --pods and --orders go together: give all.")
        if given.lists:
            raise SystemExit(
                "bench.packing: --lists names public pod lists, and --pods gives another: leave "
                "one of them out."
            )
        name = given.pods.name.partition(".")[0].removeprefix(openb.PREFIX)
        traces = [Trace(name, given.nodes, given.pods, given.orders)]
        return _experiments(traces, seeds, [*given.policies, "fgd"], weights), []
    root = openb.folder()
    if not root.is_dir():
        raise SystemExit("bench.packing: " + ABSENT.format(folder=root))
    lists = given.lists or (QUICK_LISTS if options.quick else openb.lists(root))
    traces = [_public_trace(root, name) for name in lists]
    experiments = _experiments(traces, seeds, given.policies, weights)
    table = root / "published" / "analysis_allo_discrete.csv.gz"
    return experiments, list(published(table, lists, seeds))


def _public_trace(root: Path, name: str) -> Trace:
    return Trace(
        name,
        root / "csv" / "openb_node_list_gpu_node.csv.gz",
        root / "csv" / f"{openb.PREFIX}{name}.csv.gz",
        root / "orders" / f"order_{name}.jsonl.gz",
    )


def _experiments(
    traces: Iterable[Trace],
    seeds: Sequence[int] | None,
    policies: Sequence[str],
    weights: potential.Weights,
) -> list[Experiment]:
    planned = []
    for trace in traces:
        arrivals = _read(trace)[2]
        present = [arrival.seed for arrival in arrivals]
        missing = sorted(set(seeds or ()) - set(present))
        if missing:
            raise SystemExit(
                f"bench.packing: {trace.orders} has no seed {missing[0]}: it has {present}."
            )
        planned += [
            Experiment(trace, seed, policy, weights)
            for seed in (seeds or present) for policy in policies
        ]  # fmt: skip
    return planned


def _run_all(experiments: Sequence[Experiment], jobs: int) -> list[report.Row]:
    rows = []
    with concurrent.futures.ProcessPoolExecutor(max(1, jobs)) as pool:
        for done, row in enumerate(pool.map(_run, experiments), start=1):
            rows.append(row)
            if sys.stderr.isatty():
                print(f"\r{done} of {len(experiments)} experiments", end="", file=sys.stderr)
    if sys.stderr.isatty():
        print(file=sys.stderr)
    return rows


def _run(experiment: Experiment) -> report.Row:
    nodes, pods, arrivals = _read(experiment.trace)
    arrival = next(found for found in arrivals if found.seed == experiment.seed)
    fleet = nodes.fleet(arrival.rank)
    wall, cpu = time.perf_counter(), time.process_time()
    curve = openb.replay(
        pods, arrival, fleet, policy_named(experiment.policy, fleet, pods, experiment.weights)
    )
    return {
        "list": experiment.trace.name,
        "seed": experiment.seed,
        "policy": experiment.policy,
        **{_key(at): curve.unallocated(at) for at in POINTS},
        "source": "measured",
        "seconds": round(time.perf_counter() - wall, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
    }


def _read(trace: Trace) -> tuple[openb.Nodes, openb.Pods, list[openb.Arrival]]:
    nodes, pods = openb.read_nodes(trace.nodes), openb.read_pods(trace.pods)
    return nodes, pods, openb.read_arrivals(trace.orders, nodes, pods)


def _ratios(rows: Sequence[report.Row], policy: str) -> dict[str, float]:
    """What FGD leaves idle as a multiple of what we do, and how many percent and points less."""
    ours = _by_list(rows, policy)
    fgd = _by_list(rows, "fgd")
    found: dict[str, float] = {}
    for at in POINTS:
        pairs = _paired(ours, fgd, _key(at))
        if not pairs:
            continue
        means = [
            (statistics.fmean(f for f, _ in pair), statistics.fmean(w for _, w in pair))
            for pair in pairs.values()
        ]
        what = f"{policy} vs FGD at {at} %"
        reductions = [100.0 * (1.0 - mine / theirs) for theirs, mine in means]
        margins = [theirs - mine for theirs, mine in means]
        found |= {
            f"{what}: idle, mean over lists": _mean_of(means, report.ratio),
            f"{what}: percent less, mean over lists": round(statistics.fmean(reductions), 2),
            f"{what}: percent less, worst list": round(min(reductions), 2),
            f"{what}: points less, worst list": round(min(margins), 3),
            f"{what}: points less, worst list and seed": round(
                min(f - w for pair in pairs.values() for f, w in pair), 2
            ),
        }
    return found | _speed([row for row in rows if row["policy"] == policy], policy)


def _speed(rows: Sequence[report.Row], policy: str) -> dict[str, float]:
    """One thread does all, so CPU seconds are what an idle machine would show as wall time."""
    what = f"{policy} vs published simulator: speed"
    if not rows:
        return {}
    return {
        f"{what}, median": report.ratio(
            PUBLISHED_SECONDS, statistics.median(row["cpu_seconds"] for row in rows)
        ),
        f"{what}, slowest experiment": report.ratio(
            PUBLISHED_SECONDS, max(row["cpu_seconds"] for row in rows)
        ),
        f"{what}, median wall time": report.ratio(
            PUBLISHED_SECONDS, statistics.median(row["seconds"] for row in rows)
        ),
    }


def _mean_of(
    pairs: Sequence[tuple[float, float]], figure: Callable[[float, float], float]
) -> float:
    return round(statistics.fmean(figure(theirs, mine) for theirs, mine in pairs), 3)


def _by_list(rows: Sequence[report.Row], policy: str) -> dict[str, dict[int, report.Row]]:
    found: dict[str, dict[int, report.Row]] = collections.defaultdict(dict)
    for row in rows:
        if row["policy"] == policy:
            found[row["list"]][row["seed"]] = row
    return found


def _paired(
    ours: dict[str, dict[int, report.Row]], fgd: dict[str, dict[int, report.Row]], key: str
) -> dict[str, list[tuple[float, float]]]:
    """(FGD, ours) of each seed that both have, by list."""
    found: dict[str, list[tuple[float, float]]] = {}
    for name, seeds in ours.items():
        both = [
            (fgd[name][seed][key], row[key])
            for seed, row in seeds.items() if seed in fgd.get(name, {})
        ]  # fmt: skip
        known = [(theirs, mine) for theirs, mine in both if theirs and mine is not None]
        if known:
            found[name] = known
    return found


def _means(rows: Sequence[report.Row]) -> list[report.Row]:
    """One row per list and policy, for people."""
    grouped: dict[tuple[str, str], list[report.Row]] = collections.defaultdict(list)
    for row in rows:
        grouped[row["list"], row["policy"]].append(row)
    shown = []
    for (name, policy), group in sorted(grouped.items()):
        line: report.Row = {"list": name, "seeds": len(group), "policy": policy}
        for column in (*(_key(at) for at in POINTS), "seconds", "cpu_seconds"):
            values = [row[column] for row in group if row.get(column) is not None]
            line[column] = round(statistics.fmean(values), 3) if values else None
        shown.append(line)
    return shown


def _key(at: int) -> str:
    return f"unallocated_{at}"


if __name__ == "__main__":
    sys.exit(report.main("packing", __doc__.splitlines()[0], measure, configure))
