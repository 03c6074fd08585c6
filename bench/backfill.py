"""What reservations do to waits: fifo with them, plain fifo, and backfill that reserves nothing.

Plays the Microsoft ITP traces (published with ElasticFlow) and the Philly virtual clusters
(published with Pollux) through `windlass.sim`, each on nodes of 8 GPUs of which mean demand is
80 %, with honest runtimes: the sizing that the notes on these traces suggest, nodes = ceil(mean
GPU load / 0.8 / 8), and no fewer than the largest job needs. Per trace and policy: mean and p99
wait over all jobs, the waits of the largest gangs, and by how much any start came after it was
promised. If that is not 0 the exit code is 1.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import math
import os
import sys
import time
from collections.abc import Iterable, Iterator

from bench import report
from windlass.sim import engine, overrides, policy_grid
from windlass.sim.inputs import loader
from windlass.sim.job_progress import Record
from windlass.sim.metrics import metrics
from windlass.sim.scenario import BadInput, Scenario, devices_of, with_runtimes

TRACES = (
    "itp/02", "itp/05", "itp/06", "itp/08", "itp/09", "philly/0e4a51", "philly/103959",
    "philly/11cb48", "philly/6214e9", "philly/6c71a0", "philly/e13805", "philly/ed69ec",
)  # fmt: skip
QUICK_TRACES = ("itp/02", "itp/06", "philly/6c71a0", "philly/e13805")
QUICK_JOBS = 250
POLICIES = {"plain": "none", "non-reserving": "non-reserving", "reserving": "reserving"}


@dataclasses.dataclass(frozen=True, slots=True)
class Experiment:
    trace: str
    policy: str
    first: int
    """Only so many jobs; 0: all."""


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--traces", nargs="+", metavar="NAME", help="names or paths (default: all)")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="only the first N jobs")
    parser.add_argument(
        "--jobs", type=int, default=len(os.sched_getaffinity(0)), help="experiments at a time"
    )


def measure(options: report.Options) -> report.Report:
    given = options.extra
    traces = given.traces or (QUICK_TRACES if options.quick else TRACES)
    first = given.first or (QUICK_JOBS if options.quick else 0)
    if not given.traces:
        for family in ("itp", "philly"):
            problem = loader.missing(family)
            if problem:
                raise SystemExit(f"bench.backfill: {problem}")
    planned = [Experiment(trace, policy, first) for trace in traces for policy in POLICIES]
    try:
        rows = list(_played(planned, given.jobs))
    except BadInput as problem:
        raise SystemExit(f"bench.backfill: {problem}") from problem
    return report.Report(rows, ratios(rows), broken=list(_late(rows)))


def _late(rows: Iterable[report.Row]) -> Iterator[str]:
    """Reserved starts that were not kept, although every job ran as long as it had estimated."""
    for row in rows:
        for what, column in (
            ("a start", "worst_delay_s"),
            ("the start of a largest gang", "largest_gang_past_promise_s"),
        ):
            if row[column] > 0:
                late = f"{what} was {row[column]} s after its promise"
                yield f"{row['trace']}, {row['policy']}: {late}"


def ratios(rows: Iterable[report.Row]) -> dict[str, float]:
    """Geometric means over traces of rival against reserving; and whether reserved starts were
    kept."""
    by_trace: dict[str, dict[str, report.Row]] = {}
    for row in rows:
        by_trace.setdefault(row["trace"], {})[row["policy"]] = row
    found = {}
    for rival in ("plain", "non-reserving"):
        for column, what in (
            ("mean_wait_s", "mean wait"),
            ("p99_wait_s", "p99 wait"),
            ("largest_gang_worst_wait_s", "largest gang's worst wait"),
        ):
            pairs = [(each[rival][column], each["reserving"][column]) for each in by_trace.values()]
            known = [(theirs, ours) for theirs, ours in pairs if theirs > 0 and ours > 0]
            if known:
                logs = [math.log(theirs / ours) for theirs, ours in known]
                value = math.exp(math.fsum(logs) / len(logs))
                found[f"reserving vs {rival}: {what}"] = round(value, 3)
    ours = [each["reserving"] for each in by_trace.values()]
    made, kept = sum(row["promises"] for row in ours), sum(row["promises_kept"] for row in ours)
    found["promised starts kept of those given"] = round(kept / made, 6) if made else 1.0
    return found


def _played(planned: list[Experiment], jobs: int) -> Iterator[report.Row]:
    with concurrent.futures.ProcessPoolExecutor(max(1, jobs)) as pool:
        for done, row in enumerate(pool.map(play, planned), start=1):
            if sys.stderr.isatty():
                print(f"\r{done} of {len(planned)} experiments", end="", file=sys.stderr)
            yield row
    if sys.stderr.isatty():
        print(file=sys.stderr)


def play(experiment: Experiment) -> report.Row:
    scenario = with_runtimes(loader.open_source(experiment.trace), "known")
    if experiment.first:
        scenario = overrides.first(scenario, experiment.first)
    [variant] = policy_grid.combinations(["fifo"], [POLICIES[experiment.policy]])
    wall, cpu = time.perf_counter(), time.process_time()
    outcome = engine.run(scenario, variant)
    found = metrics.summary(outcome)
    return {
        "trace": experiment.trace,
        "policy": experiment.policy,
        "jobs": len(scenario.jobs),
        "gpus": _gpus(scenario),
        "mean_wait_s": found["wait_s"]["mean"],
        "p99_wait_s": found["wait_s"]["p99"],
        **_largest(outcome.records),
        "promises": found["promises"]["made"],
        "promises_kept": found["promises"]["kept"],
        "worst_delay_s": found["promises"]["worst_delay_s"],
        "decisions": outcome.decisions,
        "seconds": round(time.perf_counter() - wall, 3),
        "cpu_seconds": round(time.process_time() - cpu, 3),
    }


def _largest(records: Iterable[Record]) -> report.Row:
    """The jobs with the most GPUs: how long they waited, and how long after the reserved start."""
    known = list(records)
    most = max(devices_of(record.job.workload) for record in known)
    gangs = [record for record in known if devices_of(record.job.workload) == most]
    late = [
        max(0.0, record.first_start - record.reserved_start)
        for record in gangs
        if record.reserved_start is not None and record.first_start is not None
    ]
    return {
        "largest_gang_gpus": int(most),
        "largest_gangs": len(gangs),
        "largest_gang_mean_wait_s": round(math.fsum(r.waited for r in gangs) / len(gangs), 1),
        "largest_gang_worst_wait_s": round(max(record.waited for record in gangs), 1),
        "largest_gang_past_promise_s": round(max(late, default=0.0), 3),
    }


def _gpus(scenario: Scenario) -> int:
    return sum(len(node.devices) for node in scenario.facts.nodes)


if __name__ == "__main__":
    sys.exit(report.main("backfill", __doc__ or "", measure, configure))
