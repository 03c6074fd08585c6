"""`windlass doctor`: what this machine can and cannot do, and what would help."""

from __future__ import annotations

import dataclasses
import importlib
import textwrap
from collections.abc import Iterator
from typing import Any

from windlass.cli import base, client, cluster, exits, machine
from windlass.cli import state as states
from windlass.cli.output import Output, terminal_width

_NEEDED = frozenset({"python", "sqlite", "fsync"})
"""Without these the engine does not start; everything else only narrows what jobs may do."""


@base.command(
    examples=(
        "windlass doctor",
        "windlass doctor --json | jq -r '.checks[] | select(.state != \"ok\") | .remedy'",
    )
)
@base.target_options
def doctor(out: Output, target: base.Target) -> int:
    """Look at this machine: what Windlass can use here, what is limited, what is missing; and at
    the cluster of the kubeconfig, if there is one.

    Each line that is not ok says what it means for jobs and what would help. The exit code is 1
    only if the engine could not start at all.
    """
    found: list[machine.Check] = []
    for check in all_checks(target):
        found.append(check)
        _show(out, check)
    fatal = [check.name for check in found if check.state == "missing" and check.name in _NEEDED]
    if fatal:
        out.say(f"\nThe engine cannot start here: {', '.join(fatal)}.")
    elif states.folder(target.state).server() is None:
        out.hint("\nThe engine can start here: windlass up")
    there = _cluster_checks(out, target)
    data = {
        "checks": [dataclasses.asdict(check) for check in found],
        "canStart": not fatal,
        "cluster": [dataclasses.asdict(check) for check in there],
    }
    found += there
    out.result(data, names=[f"{check.name}\t{check.state}" for check in found])
    return exits.FAILED if fatal else exits.OK


def _cluster_checks(out: Output, target: base.Target) -> list[machine.Check]:
    """What may stand in the way on the cluster of the kubeconfig; nothing for an engine of one
    machine, or where no server answers."""

    async def look(session: client.Session) -> list[machine.Check]:
        version = await session.read("/version")
        if "windlass" in str(version.get("gitVersion", "")):
            return []
        out.say("\nThe cluster:")
        checkup: Any = importlib.import_module("windlass.install.checkup")
        found = []
        async for each in checkup.look(session.store):
            found.append(machine.Check(**dataclasses.asdict(each)))
            _show(out, found[-1])
        return found

    try:
        return client.call(target, look)
    except exits.CliError:
        return []  # the line above says why


def all_checks(target: base.Target) -> Iterator[machine.Check]:
    yield from machine.checks(machine.Machine(states.folder(target.state).path))
    yield cluster.check(target)


def _show(out: Output, check: machine.Check) -> None:
    """The state, the name and what was found; below it what it means and the remedy."""
    if not out.human:
        return
    found = check.found if check.remedy or not check.meaning else f"{check.found}. {check.meaning}"
    out.say(f"{out.mark(check.state)}{check.name:12}{found}")
    if check.remedy:
        for text in (check.meaning, f"Remedy: {check.remedy}"):
            for line in textwrap.wrap(text, max(30, min(100, terminal_width()) - 10)):
                out.say(f"{'':10}{line}")
