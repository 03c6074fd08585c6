"""What all benchmarks share: the machine, the table, the JSON line, rivals in cached environments.

A benchmark calls `main` with a function that measures; nothing here measures anything itself but
processes (`run_process`). Ratios are written so that above 1 means Windlass is better.
"""

from __future__ import annotations

import argparse
import dataclasses
import fcntl
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Row = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Options:
    """How much to measure."""

    quick: bool
    """Finish within a minute."""
    extra: argparse.Namespace = dataclasses.field(default_factory=argparse.Namespace)
    """Values of the flags that the benchmark added itself."""


@dataclasses.dataclass(slots=True)
class Report:
    """What a benchmark found."""

    rows: list[Row] = dataclasses.field(default_factory=list)
    ratios: dict[str, float] = dataclasses.field(default_factory=dict)
    notes: list[str] = dataclasses.field(default_factory=list)
    """For people: what was left out and why."""
    broken: list[str] = dataclasses.field(default_factory=list)
    """Requirements that did not hold: printed on stderr, and the exit code is 1."""


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """What one process took, its children included."""

    wall: float
    cpu: float
    code: int


def main(
    name: str,
    purpose: str,
    measure: Callable[[Options], Report],
    configure: Callable[[argparse.ArgumentParser], None] | None = None,
) -> int:
    """Parses the flags, measures, prints. The module's `__main__` returns its result.

    `configure` adds flags of the benchmark's own; their values are in `Options.extra`.
    """
    parser = argparse.ArgumentParser(prog=f"python -m bench.{name}", description=purpose)
    parser.add_argument("--json", action="store_true", help="one JSON object on one line")
    parser.add_argument("--quick", action="store_true", help="finish within a minute")
    if configure is not None:
        configure(parser)
    options = parser.parse_args()
    report = measure(Options(options.quick, options))
    if options.json:
        line = {"bench": name, "machine": machine(), "rows": report.rows, "ratios": report.ratios}
        print(json.dumps(line))
    else:
        print_report(name, report)
    for sentence in report.broken:
        print(f"bench.{name}: {sentence}", file=sys.stderr)
    return 1 if report.broken else 0


def machine() -> dict[str, Any]:
    """What a reader must know to compare figures."""
    return {
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memoryGiB": round(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }


def print_report(name: str, report: Report) -> None:
    facts = machine()
    print(f"{name} on {facts['cores']} x {facts['cpu']}, {facts['memoryGiB']} GiB, "
          f"Python {facts['python']}, load {facts['load']}\n")  # fmt: skip
    print_table(report.rows)
    if report.ratios:
        print("\nratios (above 1: Windlass is better)")
        width = max(len(what) for what in report.ratios)
        for what, ratio in report.ratios.items():
            print(f"  {what:{width}}  {ratio:.2f}")
    for note in report.notes:
        print(f"\nnote: {note}")


def print_table(rows: Sequence[Row]) -> None:
    """All rows under the columns of all of them, numbers to the right."""
    columns = list(dict.fromkeys(key for row in rows for key in row))
    cells = [[_cell(row.get(column)) for column in columns] for row in rows]
    widths = [
        max(len(column), *(len(line[i]) for line in cells)) for i, column in enumerate(columns)
    ]
    print("  ".join(column.ljust(width) for column, width in zip(columns, widths, strict=True)))
    for row, line in zip(rows, cells, strict=True):
        padded = (
            text.rjust(width) if isinstance(row.get(column), int | float) else text.ljust(width)
            for column, text, width in zip(columns, line, widths, strict=True)
        )
        print("  ".join(padded).rstrip())


def ratio(rival: float, ours: float) -> float:
    """How many times more the rival took."""
    return round(rival / ours, 3) if ours > 0 else 0.0


def run_process(argv: Sequence[str], env: dict[str, str] | None = None) -> Cost:
    """Runs a command to its end and measures it by the kernel's own accounts."""
    begun = time.perf_counter()
    process = subprocess.Popen(
        argv,
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - begun
    process.returncode = os.waitstatus_to_exitcode(status)
    return Cost(wall, usage.ru_utime + usage.ru_stime, process.returncode)


def median_cost(costs: Sequence[Cost]) -> tuple[float, float]:
    """(CPU seconds, wall seconds), each its own median."""
    return statistics.median(c.cpu for c in costs), statistics.median(c.wall for c in costs)


def cache() -> Path:
    """Where benchmarks and tests keep what is made once: binaries, environments of rivals."""
    chosen = os.environ.get("WINDLASS_CACHE")
    return Path(chosen).expanduser() if chosen else Path.home() / ".cache" / "windlass"


def keep_bytecode() -> None:
    """Processes that are started find bytecode compiled, as installed packages have it."""
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    os.environ["PYTHONPYCACHEPREFIX"] = str(cache() / "bench-bytecode")


def rival_environment(name: str, requirements: Sequence[str]) -> Path:
    """The `bin` folder of a rival's own environment, made by uv the first time.

    Safe when two benchmarks ask at once. Raises RuntimeError with the reason if it cannot be made.
    """
    folder = cache() / "rivals" / name
    done = folder / ".complete"
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not done.exists() or done.read_text().split() != list(requirements):
            print(f"installing {name} into {folder} (once)", file=sys.stderr)
            _uv("venv", "--quiet", "--clear", "--python", sys.executable, str(folder))
            python = str(folder / "bin" / "python")
            _uv("pip", "install", "--quiet", "--python", python, *requirements)
            done.write_text("\n".join(requirements))
    return folder / "bin"


def _uv(*arguments: str) -> None:
    uv = Path(sys.executable).with_name("uv")
    command = [str(uv) if uv.exists() else "uv", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    except (OSError, subprocess.TimeoutExpired) as problem:
        raise RuntimeError(f"uv could not be run: {problem}") from problem
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise RuntimeError(f"uv {arguments[0]} failed: {last}")


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.machine()


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.4g}" if isinstance(value, float) else str(value)
