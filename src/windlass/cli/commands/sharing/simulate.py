"""`windlass simulate`: wait, completion and utilization under other policies or hardware."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.lib import base, exit_codes
from windlass.cli.lib.output import Output, terminal_width

if TYPE_CHECKING:
    from windlass.sim.compare import Comparison, Progress
    from windlass.sim.policy_grid import Variant
    from windlass.sim.scenario import Scenario

_ORDERS = ("fifo", "lifo", "priority", "fair", "shortest", "attained")
_BACKFILLS = ("none", "non-reserving", "reserving")
_PACKS = ("binpack", "spread", "fragmentation")
_DESCRIBED = (".yaml", ".yml")
_WORTH_A_CLICK = 0.005
"""The progress bar moves in steps of this part of a policy."""


def _choices(*allowed: str) -> Callable[[click.Context, click.Parameter, Any], tuple[str, ...]]:
    """Values from repeated or comma-separated options; each must be allowed."""

    def read(
        _ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
    ) -> tuple[str, ...]:
        values = [value for text in given for value in text.split(",") if value]
        for value in values:
            if value not in allowed:
                raise click.BadParameter(f"{value!r} is not one of {', '.join(allowed)}.")
        return tuple(dict.fromkeys(values))

    return read


def _file(name: str, text: str) -> Callable[[Any], Any]:
    kind = click.Path(path_type=Path)
    return click.option(name, type=kind, metavar="FILE", help=text)


@base.command(
    examples=(
        "windlass simulate itp/02 --order fifo,shortest --backfill none,reserving",
        "windlass simulate jobs.csv --nodes 16 --gpus 8 --html report.html",
        "windlass simulate examples/simulate/two-teams.yaml --preemption on,off",
        "windlass simulate examples/simulate/weights.yaml --records attempts.csv --json",
        "windlass simulate --state state.json --set queue.support.guarantee.gpu=32",
        "windlass simulate --state state.json --nodes-scale pool=train:0.5",
        "windlass simulate --node-list nodes.csv --pod-list pods.csv --arrivals orders.jsonl",
    )
)
@click.argument("source", required=False, default="")
@_file("--state", "Exported state of a platform, in place of SOURCE.")
@_file("--node-list", "Nodes, in openb's columns.")
@_file("--pod-list", "Pods, in openb's columns, in place of SOURCE.")
@_file("--arrivals", "Arrival orders for --pod-list: pods arrive one by one and stay.")
@click.option("--seed", type=int, help="Which of the --arrivals. [default: the first]")
@click.option(
    "--nodes", type=click.IntRange(1, 100_000), help="Nodes. [default: mean demand is 80 % of them]"
)
@click.option("--gpus", type=click.IntRange(1, 1024), help="GPUs of each node. [default: 8]")
@click.option("--rack", type=click.IntRange(1), help="Nodes to a rack. [default: no racks]")
@click.option("--jobs", type=click.IntRange(1), help="Only the first N jobs.")
@click.option(
    "--order",
    multiple=True,
    callback=_choices(*_ORDERS),
    help=f"Order of every queue: {', '.join(_ORDERS)}.",
)
@click.option(
    "--backfill", multiple=True, callback=_choices(*_BACKFILLS), help=f"{', '.join(_BACKFILLS)}."
)
@click.option("--preemption", multiple=True, callback=_choices("on", "off"), help="on, off.")
@click.option("--pack", multiple=True, callback=_choices(*_PACKS), help=f"{', '.join(_PACKS)}.")
@click.option(
    "--runtimes",
    default="as-given",
    show_default=True,
    metavar="KNOWN",
    help="Expected durations: known, unknown, as-given, or a factor of the real duration.",
)
@click.option("--set", "edits", multiple=True, metavar="queue.NAME.FIELD=VALUE", help="What if.")
@click.option("--nodes-scale", multiple=True, metavar="[LABEL=VALUE:]FACTOR", help="What if.")
@click.option("--load-scale", type=float, metavar="FACTOR", help="Factor on the arrival rate.")
@click.option("--grace", metavar="TIME", help="Time from the eviction signal to the exit of a job.")
@click.option("--checkpoint", metavar="TIME|never", help="Time between checkpoints of a job.")
@click.option("--restart", metavar="TIME", help="Time lost by every restart.")
@click.option(
    "--check", is_flag=True, help="Check the scheduler's invariants after every decision."
)
@_file("--html", "Write a self-contained report with plots.")
@_file("--records", "Write a CSV file with one row for each attempt of each job.")
def simulate(out: Output, **given: Any) -> int:
    """Simulate the scheduler on a trace or a load and compare policies side by side.

    SOURCE is a public trace (itp/02, philly/6214e9, muri/trace1, openb/default), a job list (CSV,
    plain or gzip) or a described cluster and load (YAML). All combinations of --order, --backfill,
    --preemption and --pack are simulated; the others stay as in the source. Ctrl-C prints the
    finished results and exits with 130.
    """
    from windlass.core.invariants import invariants
    from windlass.sim import scenario

    for name in ("html", "records"):
        _refuse_unwritable(given[name])
    try:
        played = _scenario(given)
        policies = _variants(played, given)
        with _progress_bar(out, len(policies)) as progress:
            comparison = _play(played, policies, given["check"], progress)
    except scenario.BadInput as problem:
        raise exit_codes.CliError(
            str(problem), "See `windlass simulate --help`.", _code_of(problem)
        ) from None
    except invariants.Broken as problem:
        raise exit_codes.CliError(
            f"Scheduler invariant violated: {problem}.",
            "This is a defect in Windlass: report it with the command and its input.",
            exit_codes.DEFECT,
        ) from None
    _print_result(out, comparison, given["html"], given["records"])
    return exit_codes.INTERRUPTED if comparison.interrupted else exit_codes.OK


def _code_of(problem: BaseException | None) -> int:
    from windlass.sim.inputs import loader

    while problem is not None:
        if isinstance(problem, FileNotFoundError | loader.NoSuchTrace):
            return exit_codes.NOT_FOUND
        problem = problem.__cause__
    return exit_codes.INVALID


def _refuse_unwritable(path: Path | None) -> None:
    """Checks that files can be written, before the simulation and not after it."""
    if path is not None and (path.is_dir() or not path.absolute().parent.is_dir()):
        raise exit_codes.CliError(
            f"{path} cannot be written: its folder does not exist, or it is a folder.",
            "Choose another file.",
        )


def _play(
    played: Scenario, variants: Sequence[Variant], check: bool, progress: Progress | None
) -> Comparison:
    from windlass.core.model import validation
    from windlass.sim import compare, scenario

    try:
        return compare.compare(played, variants, check=check, progress=progress)
    except validation.BadFacts as problem:
        raise scenario.BadInput(f"{played.name}: {problem}.") from problem


def _scenario(given: dict[str, Any]) -> Scenario:
    from windlass.sim import overrides, scenario

    played = _with_costs(_source(given), given)
    for factor in given["nodes_scale"]:
        played = overrides.nodes_scaled(played, factor)
    played = overrides.edited(played, given["edits"])
    if given["jobs"]:
        played = overrides.first(played, given["jobs"])
    if given["load_scale"] is not None:
        played = overrides.load_scaled(played, given["load_scale"])
    return scenario.with_runtimes(played, given["runtimes"])


def _source(given: dict[str, Any]) -> Scenario:
    from windlass.sim.inputs import loader

    named = [name for name in ("source", "state", "pod_list") if given[name]]
    if len(named) != 1:
        raise click.UsageError("Give one of SOURCE, --state or --pod-list.")
    _refuse_unused(given)
    if given["state"]:
        return loader.open_state(given["state"])
    if given["pod_list"]:
        if not given["node_list"]:
            raise click.UsageError("--pod-list needs --node-list.")
        return loader.open_pods(
            given["node_list"], given["pod_list"], given["arrivals"], given["seed"]
        )
    hardware = loader.Hardware(
        given["nodes"] or 0, given["gpus"] or 8, given["rack"] or 0, given["node_list"]
    )
    return loader.open_source(given["source"], hardware)


def _refuse_unused(given: dict[str, Any]) -> None:
    """Raises for options that have no effect on this source."""
    if not given["pod_list"]:
        for name in ("arrivals", "seed"):
            if given[name] is not None:
                raise click.UsageError(f"--{name} needs --pod-list.")
    described = given["source"].endswith(_DESCRIBED)
    if described or given["state"] or given["pod_list"]:
        for name in ("nodes", "gpus", "rack"):
            if given[name] is not None:
                raise click.UsageError(f"--{name} is for job lists: this source has its own nodes.")
    if given["node_list"] and (described or given["state"]):
        raise click.UsageError("--node-list is for job lists: this source has its own nodes.")
    if given["node_list"] and any(given[name] for name in ("nodes", "gpus", "rack")):
        raise click.UsageError("Give --node-list, or --nodes, --gpus and --rack.")
    if given["seed"] is not None and not given["arrivals"]:
        raise click.UsageError("--seed selects one of the --arrivals; use --arrivals, too.")


def _with_costs(played: Scenario, given: dict[str, Any]) -> Scenario:
    import dataclasses

    from windlass.kinds.values import duration
    from windlass.sim.inputs import job_spec

    changed: dict[str, float | None] = {}
    for name in ("grace", "checkpoint", "restart"):
        text = given[name]
        if text == "never" and name == "checkpoint":
            changed[name] = None
        elif text is not None:
            try:
                changed[name] = job_spec.seconds(text)
            except duration.Malformed as problem:
                raise click.BadParameter(f"{problem}.", param_hint=f"--{name}") from problem
    costs = dataclasses.replace(played.costs, **changed)  # type: ignore[arg-type]
    return dataclasses.replace(played, costs=costs)


def _variants(played: Scenario, given: dict[str, Any]) -> list[Variant]:
    from windlass.sim import overrides, policy_grid

    named = (given["order"], given["backfill"], given["preemption"], given["pack"])
    described = given["state"] or given["source"].endswith(_DESCRIBED)
    if not any(named) and not described:
        # A trace does not describe its queues, so --set defines them.
        fields = overrides.fields_of(played, given["edits"])
        order = () if "order" in fields else ("fifo",)
        backfill = () if fields & {"strict", "reserve"} else _BACKFILLS
        named = (order, backfill, (), ())
    policies = policy_grid.combinations(*named)
    undone = overrides.overridden(played, given["edits"], policies)
    if undone:
        option = "--order" if overrides.fields_of(played, [undone]) == {"order"} else "--backfill"
        raise click.UsageError(f"{option} and --set {undone} contradict each other; leave out one.")
    return policies


def _print_result(
    out: Output, comparison: Comparison, html: Path | None, records: Path | None
) -> None:
    from windlass.sim import compare

    data = comparison.data()
    out.say(f"{data['scenario']}: {compare.size(data)}")
    head, rows = compare.columns(comparison), compare.rows(comparison)
    if sys.stdout.isatty() and _width(head, rows) > terminal_width():
        for line in compare.cards(comparison):
            out.say(line)
    else:
        out.table(head, rows)
    for line in compare.remarks(comparison):
        out.hint(line)
    if html is not None:
        _write_report(out, comparison, html)
    if records is not None:
        _write_records(out, comparison, records)
    out.result(data, names=[policy["policy"] for policy in data["policies"]])


def _write_report(out: Output, comparison: Comparison, html: Path) -> None:
    from windlass.sim.report import report_page

    if not comparison.outcomes:
        out.hint(f"no policy was simulated to its end; no report was written to {html}")
        return
    with _report_unwritable(html):
        html.write_text(report_page.page(comparison), encoding="utf-8")
    out.hint(f"report: {html}")


def _write_records(out: Output, comparison: Comparison, path: Path) -> None:
    from windlass.sim.report import records

    if not comparison.outcomes:
        out.hint(f"no policy was simulated to its end; no records were written to {path}")
        return
    with _report_unwritable(path):
        records.write(path, comparison.outcomes)
    out.hint(f"records: {path}")


@contextlib.contextmanager
def _report_unwritable(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise exit_codes.CliError(
            f"{path} cannot be written: {problem.strerror or problem}.", "Choose another file."
        ) from problem


def _width(head: Sequence[str], rows: Sequence[Sequence[str]]) -> int:
    """The width of the table on a screen that is wide enough."""
    columns = zip(head, *rows, strict=True)
    return sum(max(map(len, column)) + 2 for column in columns) - 2


@contextlib.contextmanager
def _progress_bar(out: Output, policies: int) -> Iterator[Progress | None]:
    """A progress bar on a terminal; nothing elsewhere."""
    if not out.human or not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), TextColumn("{task.percentage:>3.0f} %"),
        TimeRemainingColumn(), console=Console(stderr=True), transient=True,
    )  # fmt: skip
    tasks: dict[str, Any] = {}
    shown: dict[str, float] = {}

    def report_progress(policy: str, done: int, total: int) -> None:
        if policy not in tasks:
            tasks[policy] = bar.add_task(f"{len(tasks) + 1}/{policies} {policy}", total=total)
        if done - shown.get(policy, -total) >= total * _WORTH_A_CLICK or done == total:
            shown[policy] = done
            bar.update(tasks[policy], completed=done)

    with bar:
        yield report_progress
