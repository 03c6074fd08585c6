"""Several policies on one scenario, side by side.

`windlass simulate` and `bench.backfill` call it. Outcomes that were finished before an interrupt
are kept: a comparison is a list of outcomes, and records whether it is complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from windlass.sim import engine
from windlass.sim.checks import invariants
from windlass.sim.metrics import metrics
from windlass.sim.metrics.metrics import Outcome
from windlass.sim.policy_grid import Variant
from windlass.sim.scenario import Scenario

Progress = Callable[[str, int, int], None]
"""Called with the policy, the number of ended jobs and the number of all jobs."""
RECHECK = 20
"""With checks on, every so many decisions are made anew from facts in another order."""

_COLUMNS = (
    "policy", "mean wait", "p50", "p95", "p99", "mean completion", "p50", "p95", "p99", "makespan",
    "used", "fragmented", "fairness", "preempted",
)  # fmt: skip


@dataclasses.dataclass(slots=True)
class Comparison:
    scenario: Scenario
    planned: tuple[str, ...]
    outcomes: list[Outcome] = dataclasses.field(default_factory=list)
    interrupted: bool = False
    decisions_checked: int = 0

    def data(self) -> dict[str, Any]:
        """Everything for programs; the same simulation gives the same bytes."""
        facts = self.scenario.facts
        return {
            "scenario": self.scenario.name,
            "nodes": len(facts.nodes),
            "gpus": sum(d.kind == "gpu" for node in facts.nodes for d in node.devices),
            "queues": [queue.name for queue in facts.queues],
            "jobs": sum(job.workload.history_key is not None for job in self.scenario.jobs),
            "complete": not self.interrupted,
            "not_played": [
                name for name in self.planned if name not in {o.policy for o in self.outcomes}
            ],
            "decisions_checked": self.decisions_checked,
            "policies": [metrics.summary(outcome) for outcome in self.outcomes],
        }


def compare(
    scenario: Scenario,
    variants: Sequence[Variant],
    *,
    check: bool = False,
    progress: Progress | None = None,
) -> Comparison:
    """Plays every variant; Ctrl-C ends it with what is finished."""
    comparison = Comparison(scenario, tuple(variant.name for variant in variants))
    try:
        for variant in variants:
            checker = checker_for(scenario, variant) if check else None
            comparison.outcomes.append(
                engine.run(
                    scenario, variant, checker=checker, progress=_reporter(progress, variant.name)
                )
            )
            comparison.decisions_checked += checker.checked if checker is not None else 0
    except KeyboardInterrupt:
        comparison.interrupted = True
    return comparison


def checker_for(scenario: Scenario, variant: Variant, again: int = RECHECK) -> invariants.Checker:
    """A checker for the scenario. It checks reserved starts where workloads run as long as stated,
    no node is lost, and evicted workloads are gone at once."""
    policy = variant.policy()
    kept = (
        all(
            job.workload.expected is not None and job.workload.expected >= job.duration
            for job in scenario.jobs
        )
        and not scenario.outages
        and not any(job.fails for job in scenario.jobs)
        and (
            scenario.costs.grace <= 0
            or not (policy.preempt or policy.reclaim or scenario.facts.advance)
        )
    )
    return invariants.Checker(policy, again=again, check_reservations=kept)


def columns(comparison: Comparison) -> tuple[str, ...]:
    """The head of the table for people; what jobs cost only where nodes have prices."""
    priced = any(node.price and node.ready_in <= 0 for node in comparison.scenario.facts.nodes)
    return (*_COLUMNS, "cost") if priced else _COLUMNS


def rows(comparison: Comparison) -> list[list[str]]:
    """The table for people, under `columns`."""
    return [_row(metrics.summary(outcome)) for outcome in comparison.outcomes]


def _row(found: dict[str, Any]) -> list[str]:
    waits, completions = found["wait_s"], found["completion_s"]
    fair = found["fairness"]["queues"]
    points = ("mean", "p50", "p95", "p99")
    return [
        found["policy"],
        *(format_seconds(waits.get(point)) for point in points),
        *(format_seconds(completions.get(point)) for point in points),
        format_seconds(found["makespan_s"]),
        format_part(found["utilisation"]),
        format_part(found["fragmentation"]),
        "-" if fair is None else f"{fair['jain']:.2f}",
        str(found["preemptions"]),
        *([] if found["cost"] is None else [format_cost(found["cost"]["jobs"])]),
    ]


def format_cost(amount: float) -> str:
    return f"{amount:,.2f}" if amount < 1000 else f"{amount:,.0f}"


def size(data: dict[str, Any]) -> str:
    """What was played, from `Comparison.data`."""
    jobs, nodes = counted(data["jobs"], "job"), counted(data["nodes"], "node")
    return f"{jobs} on {nodes} with {counted(data['gpus'], 'GPU')}"


def counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def cards(comparison: Comparison) -> Iterator[str]:
    """The table for narrow screens: some lines for each policy."""
    head = columns(comparison)
    for row in rows(comparison):
        named = dict(zip(head[9:], row[9:], strict=True))
        yield row[0]
        for what, at in (("wait", 1), ("completion", 5)):
            points = zip(("mean", *head[at + 1 : at + 4]), row[at : at + 4], strict=True)
            yield f"  {what:10}  " + "  ".join(f"{name} {value}" for name, value in points)
        for names in (("makespan", "used", "fragmented"), ("fairness", "preempted", "cost")):
            yield "  " + "  ".join(f"{name} {named[name]}" for name in names if name in named)


def format_seconds(seconds: float | None) -> str:
    """A duration in the workload that suits its size."""
    if seconds is None:
        return "-"
    for name, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f}{name}"
    return f"{seconds:.0f}s"


def format_part(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}%"


def _reporter(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(name, done, total)


def _left_over(outcome: Outcome) -> Iterator[str]:
    """Jobs that were not played to their end, and why the first of them waits."""
    groups = (
        (metrics.never_started(outcome.records), "never starts", "never start"),
        (metrics.unfinished(outcome.records), "started and never ends", "started and never end"),
    )
    for records, one, many in groups:
        if records:
            jobs = f"1 job {one}" if len(records) == 1 else f"{len(records):,} jobs {many}"
            reasons = (outcome.verdicts.get(record.job.workload.key, "") for record in records)
            reason = next(filter(None, reasons), "")
            yield f"{outcome.policy}: {jobs}" + (f": {reason}" if reason else "")


def remarks(comparison: Comparison) -> list[str]:
    """What the table does not say."""
    notes: list[str] = []
    for outcome in comparison.outcomes:
        found = metrics.summary(outcome)
        notes += _left_over(outcome)
        if found["cost"] is not None:
            paid, whole = (format_cost(found["cost"][name]) for name in ("jobs", "nodes"))
            notes.append(f"{outcome.policy}: jobs paid {paid} of the {whole} that the nodes cost")
        made = found["promises"]
        if made["made"]:
            late, gone = made["worst_delay_s"], made["withdrawn"]
            notes.append(
                f"{outcome.policy}: {made['kept']} of {made['made']} reserved starts were kept"
                + (f", {gone} withdrawn before" if gone else "")
                + (f", the worst {format_seconds(late)} late" if late else "")
            )
    missing = comparison.data()["not_played"]
    if comparison.interrupted:
        notes.append(f"interrupted; not played to the end: {', '.join(missing)}")
    if comparison.decisions_checked:
        notes.append(f"{comparison.decisions_checked} decisions checked, no rule was broken")
    return notes
