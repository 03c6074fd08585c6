"""Several policies on one scenario, side by side.

`windlass simulate` and `bench.backfill` call it. What was finished when somebody interrupts is
kept: a comparison is a list of outcomes, and says whether it is complete.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from windlass.sim import checks, engine, measures
from windlass.sim.measures import Outcome
from windlass.sim.scenario import Scenario
from windlass.sim.variants import Variant

Progress = Callable[[str, int, int], None]
"""Told: which policy, how many jobs ended, of how many."""
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
            "jobs": sum(job.unit.kin is not None for job in self.scenario.jobs),
            "complete": not self.interrupted,
            "not_played": [
                name for name in self.planned if name not in {o.policy for o in self.outcomes}
            ],
            "decisions_checked": self.decisions_checked,
            "policies": [measures.summary(outcome) for outcome in self.outcomes],
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
                    scenario, variant, checker=checker, progress=_told(progress, variant.name)
                )
            )
            comparison.decisions_checked += checker.checked if checker is not None else 0
    except KeyboardInterrupt:
        comparison.interrupted = True
    return comparison


def checker_for(scenario: Scenario, variant: Variant, again: int = RECHECK) -> checks.Checker:
    """Promises are held against the core where units run as long as they say, no node is lost, and
    who is told to go is gone at once."""
    policy = variant.policy()
    kept = (
        all(
            job.unit.expected is not None and job.unit.expected >= job.duration
            for job in scenario.jobs
        )
        and not scenario.outages
        and not any(job.fails for job in scenario.jobs)
        and (
            scenario.costs.grace <= 0
            or not (policy.preempt or policy.reclaim or scenario.facts.advance)
        )
    )
    return checks.Checker(policy, again=again, promises=kept)


def columns(comparison: Comparison) -> tuple[str, ...]:
    """The head of the table for people; what jobs cost only where nodes have prices."""
    priced = any(node.price and node.ready_in <= 0 for node in comparison.scenario.facts.nodes)
    return (*_COLUMNS, "cost") if priced else _COLUMNS


def rows(comparison: Comparison) -> list[list[str]]:
    """The table for people, under `columns`."""
    return [_row(measures.summary(outcome)) for outcome in comparison.outcomes]


def _row(found: dict[str, Any]) -> list[str]:
    waits, completions = found["wait_s"], found["completion_s"]
    fair = found["fairness"]["queues"]
    points = ("mean", "p50", "p95", "p99")
    return [
        found["policy"],
        *(told_seconds(waits.get(point)) for point in points),
        *(told_seconds(completions.get(point)) for point in points),
        told_seconds(found["makespan_s"]),
        told_part(found["utilisation"]),
        told_part(found["fragmentation"]),
        "-" if fair is None else f"{fair['jain']:.2f}",
        str(found["preemptions"]),
        *([] if found["cost"] is None else [told_cost(found["cost"]["jobs"])]),
    ]


def told_cost(amount: float) -> str:
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


def told_seconds(seconds: float | None) -> str:
    """A duration in the unit that suits its size."""
    if seconds is None:
        return "-"
    for name, size in (("d", 86400.0), ("h", 3600.0), ("m", 60.0)):
        if seconds >= size:
            return f"{seconds / size:.1f}{name}"
    return f"{seconds:.0f}s"


def told_part(part: float | None) -> str:
    return "-" if part is None else f"{100 * part:.1f}%"


def _told(progress: Progress | None, name: str) -> Callable[[int, int], None] | None:
    if progress is None:
        return None
    return lambda done, total: progress(name, done, total)


def _left_over(outcome: Outcome) -> Iterator[str]:
    """Jobs that were not played to their end, and why the first of them waits."""
    groups = (
        (measures.never_started(outcome.records), "never starts", "never start"),
        (measures.unfinished(outcome.records), "started and never ends", "started and never end"),
    )
    for records, one, many in groups:
        if records:
            jobs = f"1 job {one}" if len(records) == 1 else f"{len(records):,} jobs {many}"
            reasons = (outcome.verdicts.get(record.job.unit.key, "") for record in records)
            reason = next(filter(None, reasons), "")
            yield f"{outcome.policy}: {jobs}" + (f": {reason}" if reason else "")


def remarks(comparison: Comparison) -> list[str]:
    """What the table does not say."""
    said: list[str] = []
    for outcome in comparison.outcomes:
        found = measures.summary(outcome)
        said += _left_over(outcome)
        if found["cost"] is not None:
            paid, whole = (told_cost(found["cost"][name]) for name in ("jobs", "nodes"))
            said.append(f"{outcome.policy}: jobs paid {paid} of the {whole} that the nodes cost")
        made = found["promises"]
        if made["made"]:
            late, gone = made["worst_delay_s"], made["withdrawn"]
            said.append(
                f"{outcome.policy}: {made['kept']} of {made['made']} promised starts were kept"
                + (f", {gone} withdrawn before" if gone else "")
                + (f", the worst {told_seconds(late)} late" if late else "")
            )
    missing = comparison.data()["not_played"]
    if comparison.interrupted:
        said.append(f"interrupted; not played to the end: {', '.join(missing)}")
    if comparison.decisions_checked:
        said.append(f"{comparison.decisions_checked} decisions checked, no rule was broken")
    return said
