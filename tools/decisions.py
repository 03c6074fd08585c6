"""Records decisions of the scheduling core and compares two recordings.

    python -m tools.decisions record before.jsonl.gz
    python -m tools.decisions compare before.jsonl.gz after.jsonl.gz

A refactoring of the core must not change a decision. Record on the checkout before it and on the
one after it, then compare: the exit code is 1 where any decision differs in more than the message
of a verdict. The inputs are text in tests/decisions and draws from seeds (`tools.decision_worlds`),
so both checkouts play the same ones. A recording takes about two minutes and is not committed.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import functools
import gzip
import hashlib
import itertools
import json
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import yaml

from tools import decision_inputs, decision_play, decision_worlds
from tools.decision_inputs import Answer

INPUTS = Path(__file__).parent.parent / "tests" / "decisions"
SMALL, CONTEST, SCENARIOS = 80, 60, 40
"""How many worlds and scenarios are drawn from seeds."""
STEADY = ((300, 400, 12), (800, 1000, 6))
"""Nodes, waiting workloads and decisions of the worlds in the steady state."""
REQUIRED = frozenset((
    "affinity", "bundle numa", "bundle pcie", "cleared for a window", "defragmentation", "eviction",
    "eviction for a running workload", "firm reservation", "gang", "growth", "host ports",
    "limit of a user", "nominated start", "nomination", "partition device",
    "preemption in the queue", "ratio device", "reclaim", "repair", "required topology",
    "search budget used up", "share device", "shrink", "spread", "start", "tentative reservation",
    "verdict WaitingForShare", "verdict WaitingForTopology", "wanted nodes", "whole device",
    "withdrawal",
))  # fmt: skip
"""Kinds of content that the inputs must lead to; without one of them they show too little."""
_LINES_SHOWN = 60
_REASONED = ("evictions", "withdrawals")

Play = Callable[[], Iterator[tuple[float, Answer]]]
Line = dict[str, Any]


# --- what is played -------------------------------------------------------------------------------


def cases(inputs: Path = INPUTS) -> Iterator[tuple[str, Play]]:
    """Everything that is recorded: a name that is unique, and how to play it."""
    for path in sorted(inputs.glob("simulated/*.yaml")):
        for name, variant in _variants(path):
            yield name, functools.partial(decision_inputs.play, path, variant)
    for path in sorted(inputs.glob("worlds/*.jsonl")):
        for number, line in enumerate(path.read_text().splitlines()):
            world = json.loads(line)
            yield (
                f"worlds/{path.stem} {number}: {world.get('name', '')}",
                functools.partial(decision_play.play, world),
            )
    for seed in range(SCENARIOS):
        yield f"drawn scenario/{seed}", functools.partial(_play_drawn, seed)
    for seed in range(SMALL):
        yield f"drawn small world/{seed}", _drawing(decision_worlds.small, seed)
    for seed in range(CONTEST):
        yield f"drawn contest/{seed}", _drawing(decision_worlds.contest, seed)
    for size in STEADY:
        yield f"steady state/{size[0]} nodes", _drawing(decision_worlds.steady, *size)


def _variants(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """The scenario as it is, and as the first comment lines say: `# also: {order: lifo}`."""
    yield f"simulated/{path.stem}", {}
    for line in path.read_text().splitlines():
        if line.startswith("# also: "):
            variant = yaml.safe_load(line.removeprefix("# also: "))
            yield f"simulated/{path.stem} {json.dumps(variant, sort_keys=True)}", variant


def _drawing(draw: Callable[..., dict[str, Any]], *arguments: int) -> Play:
    return lambda: decision_play.play(draw(*arguments))


def _play_drawn(seed: int) -> Iterator[tuple[float, Answer]]:
    """Drawn scenarios take the way of every other one: through the text of a file."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"scenario-{seed}.yaml"
        path.write_text(yaml.safe_dump(decision_worlds.scenario(seed), sort_keys=False))
        yield from decision_inputs.play(path, {})


# --- recording ------------------------------------------------------------------------------------


def record(out: Path, played: Iterable[tuple[str, Play]]) -> tuple[str, set[str]]:
    """Writes one line for every decision. Returns the counts for people, and what content of
    `REQUIRED` no decision has."""
    traits: collections.Counter[str] = collections.Counter()
    groups: collections.Counter[str] = collections.Counter()
    digest = hashlib.sha256()
    distinct: set[bytes] = set()
    with out.open("wb") as raw, gzip.GzipFile(filename="", fileobj=raw, mode="wb", mtime=0) as file:
        for name, play in played:
            for number, (at, (decision, found)) in enumerate(play()):
                line = {"case": name, "number": number, "at": at, "decision": decision,
                        "traits": found}  # fmt: skip
                text = json.dumps(line, sort_keys=True, separators=(",", ":")).encode() + b"\n"
                file.write(text)
                digest.update(text)
                content = json.dumps({**decision, "operations": 0, "wakeAt": 0}, sort_keys=True)
                distinct.add(hashlib.sha256(content.encode()).digest())
                traits.update(found)
                groups[name.partition("/")[0]] += 1
    summary = _summary(groups, traits, len(distinct), digest.hexdigest())
    return summary, set(REQUIRED - traits.keys())


def _summary(
    groups: collections.Counter[str], traits: collections.Counter[str], distinct: int, digest: str
) -> str:
    lines = [f"{groups.total()} decisions, {distinct} distinct"]
    lines += [f"  {count:6} {name}" for name, count in groups.items()]
    lines += ["Decisions with"]
    lines += [f"  {count:6} {name}" for name, count in sorted(traits.items())]
    return "\n".join([*lines, f"sha256 {digest}"])


# --- comparing ------------------------------------------------------------------------------------


def compare(before: Path, after: Path, *, reasons: bool = True, shown: int = 5) -> list[str]:
    """The first difference of each case that differs, in readable form; empty: no decision
    changed. Without `reasons`, the sentences of evictions and withdrawals may differ."""
    found: list[str] = []
    cases_found = 0
    ended: set[str] = set()
    for name, one, other in _aligned(before, after):
        if name in ended or _content(one, reasons) == _content(other, reasons):
            continue
        ended.add(name)  # what follows in this case follows from the difference
        cases_found += 1
        if cases_found <= shown:
            found.append(_difference(name, one, other, reasons))
    if cases_found > shown:
        found.append(f"... and {cases_found - shown} more cases differ")
    return found


def _aligned(before: Path, after: Path) -> Iterator[tuple[str, Line | None, Line | None]]:
    """Decisions of both recordings side by side; None where one has fewer."""
    left, right = dict(_by_case(before)), dict(_by_case(after))
    for name in dict.fromkeys((*left, *right)):
        for one, other in itertools.zip_longest(left.get(name, ()), right.get(name, ())):
            yield name, one, other


def _by_case(path: Path) -> Iterator[tuple[str, list[Line]]]:
    with gzip.open(path, "rt") as file:
        lines = map(json.loads, file)
        for name, group in itertools.groupby(lines, key=lambda line: line["case"]):
            yield name, list(group)


def _content(line: Line | None, reasons: bool) -> Any:
    """What must be the same. Traits are counts for people."""
    if line is None:
        return None
    decision = line["decision"]
    if not reasons:
        decision = {
            key: [{**each, "reason": ""} for each in value] if key in _REASONED else value
            for key, value in decision.items()
        }
    return {"at": line["at"], **decision}


def _difference(name: str, one: Line | None, other: Line | None, reasons: bool) -> str:
    if one is None or other is None:
        there = "before" if other is None else "after"
        line = one or other or {}
        return f"{name}: decision {line.get('number')} is only in the recording {there}"
    first, second = _shown(one, reasons), _shown(other, reasons)
    diff = list(difflib.unified_diff(first, second, "before", "after", lineterm="", n=0))
    lines = [line for line in diff if not line.startswith("@@")]
    if len(lines) > _LINES_SHOWN:
        lines = [*lines[:_LINES_SHOWN], f"... {len(lines) - _LINES_SHOWN} more lines"]
    return "\n".join([f"{name}: decision {one['number']} at {one['at']} differs", *lines])


def _shown(line: Line, reasons: bool) -> list[str]:
    """The decision in lines of text: one for each placement, eviction, verdict and so on."""
    return [
        f"{key}: {json.dumps(entry)}"
        for key, value in _content(line, reasons).items()
        for entry in (value if isinstance(value, list) else [value])
    ]


# --- command line ---------------------------------------------------------------------------------


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tools.decisions",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="command", required=True)
    recording = commands.add_parser("record", help="play all inputs and write every decision")
    recording.add_argument("out", type=Path)
    recording.add_argument(
        "--only", default="", metavar="TEXT", help="only cases whose name contains this"
    )
    comparing = commands.add_parser("compare", help="exit with 1 where a decision differs")
    comparing.add_argument("before", type=Path)
    comparing.add_argument("after", type=Path)
    comparing.add_argument("--shown", type=int, default=5, help="how many cases to print in full")
    comparing.add_argument(
        "--ignore-reasons",
        action="store_true",
        help="let the sentences of evictions and withdrawals differ",
    )
    options = parser.parse_args(arguments)
    if options.command == "record":
        begun = time.process_time()
        played = (each for each in cases() if options.only in each[0])
        summary, missing = record(options.out, played)
        print(summary)
        print(f"{time.process_time() - begun:.1f} s of CPU, written to {options.out}")
        if missing and not options.only:
            print(f"no decision has: {', '.join(sorted(missing))}; add inputs that lead to it")
        return 1 if missing and not options.only else 0
    found = compare(
        options.before, options.after, reasons=not options.ignore_reasons, shown=options.shown
    )
    print("\n\n".join(found) or "every decision is the same")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
