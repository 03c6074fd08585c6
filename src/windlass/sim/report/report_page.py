"""A comparison as one HTML file: a table and plots, without scripts, fonts or anything from afar.

It opens offline, in light and dark, and on paper. The same comparison gives the same bytes.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

from windlass.reporting import svg
from windlass.reporting.svg import Line
from windlass.sim import compare
from windlass.sim.compare import Comparison
from windlass.sim.metrics import metrics
from windlass.sim.metrics.metrics import Outcome, Values

POINTS = 240
"""Stretches of time in a plot."""
MOST_QUEUES = 7
"""Queues with a colour of their own; the rest is one."""
MOST_ENTITLED = 12
"""Queues with a plot of share against entitlement of their own; the rest is one."""

STYLE = """
:root{color-scheme:light dark;--ink:#1b2430;--soft:#5d6b7a;--paper:#fff;--card:#f6f8fa;
--rule:#dde3ea;--best:#e3f4e8;--c0:#2f6fde;--c1:#d9622b;--c2:#2a9d6f;--c3:#a24bd0;--c4:#c79a12;
--c5:#d23f6e;--c6:#1f9bb3;--c7:#7a8694}
@media (prefers-color-scheme:dark){:root{--ink:#e6ebf1;--soft:#97a5b5;--paper:#11161c;
--card:#1a2129;--rule:#2c3640;--best:#173626;--c0:#6ea2ff;--c1:#ff9460;--c2:#4fd09c;--c3:#cf8cf5;
--c4:#edc54d;--c5:#ff7fa6;--c6:#5bcfe6;--c7:#9aa7b5}}
*{box-sizing:border-box}
body{margin:0 auto;padding:2rem 1.2rem 4rem;max-width:1280px;background:var(--paper);
color:var(--ink);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
h1{font-size:1.6rem;margin:0 0 .2rem}
h2{font-size:1.05rem;margin:0 0 .3rem}
p{margin:.2rem 0 .8rem;color:var(--soft)}
.scroll{overflow-x:auto;margin:1.4rem 0}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.4rem .45rem;text-align:right;white-space:nowrap;border-bottom:1px solid var(--rule)}
th{color:var(--soft);font-weight:600;font-size:.82rem}
th:first-child,td:first-child{text-align:left}
td.best{background:var(--best);font-weight:600}
.plots{display:grid;gap:1.2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,520px),1fr))}
section{background:var(--card);border:1px solid var(--rule);border-radius:10px;
padding:1rem 1rem .6rem;overflow-x:auto}
svg{width:100%;height:auto;display:block}
.grid{stroke:var(--rule);fill:none}
.axis{stroke:var(--soft);fill:none}
.mark{fill:var(--soft);font-size:11px}
@media (max-width:640px){svg{min-width:520px}.mark{font-size:14px}}
.line{fill:none;stroke-width:1.8;stroke-linejoin:round}
.area{fill-opacity:.82}
.key{display:flex;flex-wrap:wrap;gap:.2rem 1rem;margin:.2rem 0 .4rem;font-size:.86rem}
.key span::before{content:"";display:inline-block;width:.8em;height:.8em;border-radius:3px;
margin-right:.4em;background:currentColor}
.key b{font-weight:400;color:var(--ink)}
.wide{grid-column:1/-1}
.multiples{display:grid;gap:.6rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,360px),1fr))}
.multiples h3{font-size:.9rem;font-weight:600;margin:.3rem 0 0}
.multiples .mark{font-size:17px}
.multiples svg{overflow:visible}
.multiples .line{stroke-width:3}
.line.held{stroke:var(--c0)}
.line.entitled{stroke:var(--c1);stroke-dasharray:9 6}
.key .held{color:var(--c0)}
.key .entitled{color:var(--c1)}
"""
_DASHES = ("9 6", "3 5", "12 4 2 4", "5 8", "2 7", "14 9", "7 3 2 3")
"""Where policies do the same, their lines lie on each other: the later ones let the first show."""


def _style() -> str:
    rules = [STYLE]
    for n in range(svg.COLOURS):
        colour = f"var(--c{n})"
        rules.append(f".line.s{n}{{stroke:{colour}}}.area.s{n}{{fill:{colour}}}")
        rules.append(f".key .s{n}{{color:{colour}}}")
    rules += [f".line.s{n}{{stroke-dasharray:{each}}}" for n, each in enumerate(_DASHES, start=1)]
    return "".join(rules)


def page(comparison: Comparison) -> str:
    """The whole file."""
    data = comparison.data()
    title = f"Simulation of {html.escape(data['scenario'])}"
    facts = f"{compare.size(data)}, {compare.counted(len(data['queues']), 'queue')}."
    remarks = "".join(f"<p>{html.escape(line)}</p>" for line in compare.remarks(comparison))
    plots = "".join(_plots(comparison.outcomes))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        f"<title>{title}</title><style>{_style()}</style></head><body><h1>{title}</h1><p>{facts}</p>"
        f'<div class="scroll">{_table(comparison)}</div>{remarks}<div class="plots">{plots}</div>'
        "</body></html>\n"
    )


def _table(comparison: Comparison) -> str:
    """As on the command line, with the best of each column marked."""
    rows = compare.rows(comparison)
    best = _best([metrics.summary(outcome) for outcome in comparison.outcomes])
    head = "".join(f"<th>{html.escape(name)}</th>" for name in compare.columns(comparison))
    body = "".join(
        "<tr>"
        + "".join(
            f"<td{' class=best' if (line, column) in best else ''}>{html.escape(cell)}</td>"
            for column, cell in enumerate(row)
        )
        + "</tr>"
        for line, row in enumerate(rows)
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _best(found: Sequence[dict[str, object]]) -> set[tuple[int, int]]:
    """(row, column) of the smallest waits, completions and makespan and of the largest use."""
    columns = [
        [_number(each[name], point) for each in found]
        for name in ("wait_s", "completion_s")
        for point in ("mean", "p50", "p95", "p99")
    ]
    columns.append([_number(each, "makespan_s") for each in found])
    columns.append([-(_number(each, "utilisation") or 0.0) for each in found])
    marked = set()
    for number, values in enumerate(columns, start=1):
        known = [value for value in values if value is not None]
        if len(set(known)) > 1:
            marked |= {(row, number) for row, value in enumerate(values) if value == min(known)}
    return marked


def _number(values: object, name: str) -> float | None:
    value = values.get(name) if isinstance(values, dict) else None
    return float(value) if isinstance(value, int | float) else None


def _plots(outcomes: Sequence[Outcome]) -> Iterable[str]:
    if not outcomes:
        return
    names = [outcome.policy for outcome in outcomes]
    resource = outcomes[0].timeline.resource
    span = max(outcome.end - outcome.timeline.times[0] for outcome in outcomes)
    yield _section(
        f"Share of {resource.upper()}s in use",
        "Means over equal stretches of time.",
        names,
        _use(outcomes, span),
    )
    yield _section(
        "Waits",
        "Which part of all jobs waited no longer than this, in all its turns together.",
        names,
        _wait_curves(outcomes),
    )
    yield _section(
        "Jobs that wait",
        "How long the line was.",
        names,
        _counts(outcomes, span),
    )
    for outcome in outcomes:
        if len(outcome.usage.queues) > 1:
            yield _queue_shares(outcome, span)
            yield _shares_and_entitlements(outcome, span)


def _section(title: str, text: str, names: Sequence[str], drawing: str) -> str:
    key = "".join(
        f'<span class="s{number % svg.COLOURS}"><b>{html.escape(name)}</b></span>'
        for number, name in enumerate(names)
    )
    return (
        f"<section><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p>"
        f'<div class="key">{key}</div>{drawing}</section>'
    )


def _use(outcomes: Sequence[Outcome], span: float) -> str:
    series = [Line(o.policy, _times(o), _ratio(o, o.timeline.used)) for o in outcomes]
    return svg.lines(
        series, svg.time_axis(span), svg.plain_axis(1.0, "", percent=True), "use over time"
    )


def _counts(outcomes: Sequence[Outcome], span: float) -> str:
    series = [Line(o.policy, _times(o), _sampled(o, o.timeline.waiting)) for o in outcomes]
    highest = max((max(line.y, default=0.0) for line in series), default=0.0)
    return svg.lines(
        series, svg.time_axis(span), svg.plain_axis(highest, ""), "waiting jobs over time"
    )


def _wait_curves(outcomes: Sequence[Outcome]) -> str:
    longest = max((max(outcome.waits(), default=0.0) for outcome in outcomes), default=0.0)
    axis = svg.log_time_axis(longest, "wait")
    marks = [axis.high * n / POINTS for n in range(POINTS + 1)]
    series = []
    for outcome in outcomes:
        waits = outcome.waits()
        reached = [metrics.reached(waits, 10.0**mark) for mark in marks]
        series.append(Line(outcome.policy, marks, reached))
    return svg.lines(series, axis, svg.plain_axis(1.0, "", percent=True), "waits")


def _queue_shares(outcome: Outcome, span: float) -> str:
    """What queues without others below them held, on top of each other."""
    own, rest = _shown_queues(_leaves(outcome), outcome, MOST_QUEUES)
    times = _times(outcome)
    series = [
        Line(name, times, _ratio(outcome, outcome.shares.over_time([name])[0])) for name in own
    ]
    if rest:
        others = outcome.shares.over_time(rest)[0]
        series.append(Line(f"{len(rest)} others", times, _ratio(outcome, others)))
    drawing = svg.stacked(
        series, svg.time_axis(span), svg.plain_axis(1.0, "", percent=True), "queues over time"
    )
    names = [each.name for each in series]
    return _section(f"Queues under {outcome.policy}", "What each held.", names, drawing)


def _shares_and_entitlements(outcome: Outcome, span: float) -> str:
    """A small plot for each queue, all with the same axes: what it held and what it was entitled
    to, as parts of what all queues together held and were entitled to."""
    names = list(outcome.usage.queues)
    if len(names) > MOST_ENTITLED:
        names = _leaves(outcome)
    own, rest = _shown_queues(names, outcome, MOST_ENTITLED)
    groups = [(name, [name]) for name in sorted(own)]
    if rest:
        groups.append((f"{len(rest)} other queues", rest))
    pairs = [(title, *_parts(outcome, queues)) for title, queues in groups]
    highest = max(max(*allocated, *entitled) for _, allocated, entitled in pairs)
    axes = svg.time_axis(span, title=""), svg.plain_axis(highest, "", percent=True)
    times = _times(outcome)
    plots = "".join(
        f"<div><h3>{html.escape(title)}</h3>"
        + svg.lines(
            [Line("held", times, allocated), Line("entitled", times, entitled)],
            *axes, f"share of {title} over time", ("held", "entitled"),
        )
        + "</div>"
        for title, allocated, entitled in pairs
    )  # fmt: skip
    text = (
        "Parts of what all queues together held and were entitled to. A queue is entitled to no "
        "more than it asks for; where no queue waits, each is entitled to what it holds."
    )
    return (
        f'<section class="wide"><h2>Shares under {html.escape(outcome.policy)}</h2><p>{text}</p>'
        '<div class="key"><span class="held"><b>held</b></span>'
        '<span class="entitled"><b>entitled (dashed)</b></span></div>'
        f'<div class="multiples">{plots}</div></section>'
    )


def _parts(outcome: Outcome, queues: Sequence[str]) -> tuple[list[float], list[float]]:
    """Means over equal stretches of time of what the queues held and were entitled to."""
    allocated, entitled = (_sampled(outcome, each) for each in outcome.shares.over_time(queues))
    whole = outcome.shares.whole
    all_allocated, all_entitled = (_sampled(outcome, whole[:, column]) for column in (0, 2))
    got = [
        part / all_ if all_ else 0.0 for part, all_ in zip(allocated, all_allocated, strict=True)
    ]
    due = [
        part / all_ if all_ else instead
        for part, all_, instead in zip(entitled, all_entitled, got, strict=True)
    ]
    return got, due


def _leaves(outcome: Outcome) -> list[str]:
    parents = set(outcome.usage.parents.values())
    return [name for name in outcome.usage.queues if name not in parents]


def _shown_queues(names: Sequence[str], outcome: Outcome, most: int) -> tuple[list[str], list[str]]:
    """Those that held most, and the rest; not those that never asked for anything."""
    found = outcome.shares.by_queue()
    active = [name for name in names if found[name].device_seconds or found[name].backlogged]
    ranked = sorted(active or names, key=lambda name: (-found[name].device_seconds, name))
    return ranked[:most], ranked[most:]


def _times(outcome: Outcome) -> list[float]:
    span = outcome.end - outcome.timeline.times[0]
    return [span * (n + 0.5) / POINTS for n in range(POINTS)]


def _sampled(outcome: Outcome, values: Values) -> list[float]:
    return outcome.timeline.sampled(values, POINTS, outcome.end)


def _ratio(outcome: Outcome, values: Values) -> list[float]:
    """Parts of the capacity, stretch by stretch."""
    capacity = _sampled(outcome, outcome.timeline.capacity)
    allocated = _sampled(outcome, values)
    return [min(1.0, part / whole) if whole else 0.0
            for part, whole in zip(allocated, capacity, strict=True)]  # fmt: skip
