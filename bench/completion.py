"""Average completion time beside seven published policies, on the traces and by the protocol of
Muri (SIGCOMM'22): 64 GPUs, 8 per node.

Three policies are ours: `attained` and `attained-light` know nothing about durations and move
nobody; `shortest-nonpreemptive` knows durations and stops nobody. `x_srsf` is the average as a
multiple of SRSF's, which knows all durations and stops and moves for free: published where it is,
else our own run. SRTF, SRSF and Tiresias were also run by us (`... (replayed)`), to show that the
replay is the published one.
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable
from pathlib import Path

from bench import report
from bench.muri import policies, replay
from windlass.core.prediction import predictor
from windlass.sim.scenario import BadInput

TRACES = ("trace1", "trace1_pr", "trace3", "trace3_pr")
QUICK = ("trace3",)
SAME = 1e-6
"""How far our SRSF may be from the published one for a trace to be the published one."""
MISSING = """\
{folder} is not there. It holds the job lists published with Muri (github.com/Rivendile/Muri, \
simulator/trace-data): point WINDLASS_DATA at the folder above traces/, or give --trace."""

Maker = Callable[[replay.Trace], replay.Policy]
OURS: dict[str, Maker] = {
    "attained": lambda _: policies.Attained(),
    "attained-light": lambda _: policies.Attained(predictor.LIGHT),
    "shortest-nonpreemptive": policies.ShortestNonpreemptive,
}
THEIRS: dict[str, Maker] = {
    "SRTF": lambda trace: policies.Shortest(trace, by_gpu_time=False),
    "SRSF": lambda trace: policies.Shortest(trace, by_gpu_time=True),
    "Tiresias": lambda _: policies.Tiresias(),
}


def measure(options: report.Options) -> report.Report:
    found = report.Report()
    paths = _paths(options)
    published = _published()
    for number, path in enumerate(paths, start=1):
        trace = replay.read(path)
        if sys.stderr.isatty():
            print(f"{trace.name}: {number} of {len(paths)}", file=sys.stderr)
        _measure_trace(found, trace, published)
    _summarise(found)
    return found


def _paths(options: report.Options) -> list[Path]:
    if options.extra.trace:
        return [Path(each) for each in options.extra.trace]
    folder = replay.root()
    if not folder.is_dir():
        raise BadInput(MISSING.format(folder=folder))
    return [folder / f"{name}.csv.gz" for name in (QUICK if options.quick else TRACES)]


def _published() -> dict[tuple[str, str], replay.Published]:
    path = replay.root() / replay.PUBLISHED
    return replay.read_published(path) if path.exists() else {}


def _measure_trace(
    found: report.Report, trace: replay.Trace, published: dict[tuple[str, str], replay.Published]
) -> None:
    replayed = {name: replay.replay(trace, make(trace)) for name, make in THEIRS.items()}
    told = _told(trace.name, published, replayed["SRSF"])
    reference = told["SRSF"].mean if "SRSF" in told else replayed["SRSF"].mean
    for policy, results in told.items():
        found.rows.append(_row(trace.name, policy, results, reference))
    for policy, again in replayed.items():
        found.rows.append(_row(trace.name, f"{policy} (replayed)", again, reference))
    for policy, make in OURS.items():
        ours = replay.replay(trace, make(trace))
        found.rows.append(_row(trace.name, policy, ours, reference))


def _told(
    name: str, published: dict[tuple[str, str], replay.Published], srsf: replay.Result
) -> dict[str, replay.Published]:
    """What was published of a trace; nothing if this one only has the same name."""
    told = {policy: results for (trace, policy), results in published.items() if trace == name}
    if "SRSF" not in told or abs(told["SRSF"].mean / srsf.mean - 1) > SAME:
        return {}
    return told


def _row(
    trace: str, policy: str, results: replay.Published | replay.Result, reference: float
) -> report.Row:
    counted = isinstance(results, replay.Result)
    return {
        "trace": trace,
        "policy": policy,
        "mean_jct_s": round(results.mean, 3),
        "makespan_s": round(results.makespan, 3),
        "p99_jct_s": round(results.p99, 3),
        "preemptions": results.preemptions if counted else None,
        "migrations": results.migrations if counted else None,
        "x_srsf": round(results.mean / reference, 4),
    }


def _summarise(found: report.Report) -> None:
    """Geometric means over the traces, and each trace against those it can be compared with."""
    for policy in OURS:
        rows = [row for row in found.rows if row["policy"] == policy]
        mean = statistics.geometric_mean(row["x_srsf"] for row in rows)
        found.ratios[f"{policy} vs SRSF, geometric mean"] = round(1 / mean, 4)
        for rival in ("Tiresias", "Themis"):
            ratios = [
                other["mean_jct_s"] / row["mean_jct_s"]
                for row in rows
                for other in found.rows
                if (other["trace"], other["policy"]) == (row["trace"], rival)
            ]
            if ratios:
                found.ratios[f"{policy} vs {rival}, geometric mean"] = round(
                    statistics.geometric_mean(ratios), 4
                )
        found.notes.append(
            f"{policy}: {mean:.3f} x SRSF (geometric mean of {len(rows)} traces), "
            f"worst {max(row['x_srsf'] for row in rows):.3f}"
        )


def _configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--trace", action="append", metavar="F", help="a job list by path; may be given repeatedly"
    )


if __name__ == "__main__":
    try:
        code = report.main("completion", (__doc__ or "").strip(), measure, _configure)
    except BadInput as problem:
        sys.exit(str(problem))
    sys.exit(code)
