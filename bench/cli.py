"""How long a person waits for `windlass --help` and `windlass version`.

CPU seconds of the whole process, against bare Python (the floor), kubectl, and the command lines
of two Python peers. Bytecode is compiled once for everybody, as an installed package has it.
"""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path

from bench import report

KUBERNETES = "v1.36.3"
RIVALS = {
    "dask": (("dask", "distributed", "click"), ("dask",)),
    "prefect": (("prefect",), ("prefect",)),
}
"""Name -> (requirements, its command)."""


def measure(options: report.Options) -> report.Report:
    found = report.Report()
    rounds = 7 if options.quick else 25
    commands = _commands(found)
    costs: dict[tuple[str, str], list[report.Cost]] = {key: [] for key in commands}
    env = _environment()
    for argv in commands.values():
        report.run_process(argv, env)  # compiles and warms the file cache
    for _ in range(rounds):
        # Round by round, so that a busy moment of the machine hits all alike.
        for key, argv in commands.items():
            costs[key].append(report.run_process(argv, env))
    _tabulate(found, costs)
    return found


def _commands(found: report.Report) -> dict[tuple[str, str], list[str]]:
    windlass = str(Path(sys.executable).with_name("windlass"))
    commands = {
        ("python", "-c pass"): [sys.executable, "-c", "pass"],
        ("windlass", "--help"): [windlass, "--help"],
        ("windlass", "version"): [windlass, "version"],
    }
    kubectl = _kubectl()
    if kubectl:
        commands["kubectl", "--help"] = [kubectl, "--help"]
        commands["kubectl", "version"] = [kubectl, "version", "--client"]
    else:
        found.notes.append("kubectl was not found: `make kubernetes-binaries` builds it.")
    for name, (requirements, (program,)) in RIVALS.items():
        try:
            path = str(report.rival_environment(name, requirements) / program)
        except RuntimeError as problem:
            found.notes.append(f"{name} is missing: {problem}")
            continue
        commands[name, "--help"] = [path, "--help"]
        commands[name, "version"] = [path, "--version"]
    return commands


def _kubectl() -> str | None:
    built = report.cache() / "kubernetes" / KUBERNETES / "bin" / "kubectl"
    return str(built) if built.exists() else shutil.which("kubectl")


def _environment() -> dict[str, str]:
    env = {k: v for k, v in os.environ.items() if k != "PYTHONDONTWRITEBYTECODE"}
    env["PYTHONPYCACHEPREFIX"] = str(report.cache() / "bench-bytecode")
    return env


def _tabulate(found: report.Report, costs: dict[tuple[str, str], list[report.Cost]]) -> None:
    floor, _ = report.median_cost(costs["python", "-c pass"])
    medians = {}
    for (program, command), samples in costs.items():
        failed = {cost.code for cost in samples} - {0}
        if failed:
            found.notes.append(f"{program} {command} ended with {failed}; left out")
            continue
        cpu, wall = report.median_cost(samples)
        medians[program, command] = cpu
        found.rows.append(
            {
                "program": program,
                "command": command,
                "cpu_ms": round(cpu * 1e3, 1),
                "wall_ms": round(wall * 1e3, 1),
                "over_python_ms": round((cpu - floor) * 1e3, 1),
                "rounds": len(samples),
            }
        )
    for (program, command), cpu in medians.items():
        if program not in ("windlass", "python"):
            what = f"CPU of {command} vs {program}"
            found.ratios[what] = report.ratio(cpu, medians["windlass", command])


if __name__ == "__main__":
    sys.exit(report.main("cli", __doc__ or "", measure))
