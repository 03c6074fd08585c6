"""`windlass doctor`: checks what this machine supports, with a remedy for each problem."""

from __future__ import annotations

import dataclasses
import importlib
import textwrap
from collections.abc import Iterator
from typing import Any

from windlass.cli.engine import cluster_check, host_checks, platform_status
from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib import state_dir as states
from windlass.cli.lib.output import Output, terminal_width
from windlass.store import errors

_NEEDED = frozenset({"python", "sqlite", "fsync"})
"""Without these the engine does not start; the others only limit what jobs may do."""


@base.command(
    examples=(
        "windlass doctor",
        "windlass doctor --json | jq -r '.checks[] | select(.state != \"ok\") | .remedy'",
    )
)
@base.target_options
def doctor(out: Output, target: base.Target) -> int:
    """Check what this machine supports, what is limited and what is missing, and check the cluster
    of the kubeconfig, if there is one.

    Each line that is not ok has its effect on jobs and a remedy. The exit code is 1 only if the
    engine cannot start.
    """
    found: list[host_checks.Check] = []
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
    return exit_codes.FAILED if fatal else exit_codes.OK


def _cluster_checks(out: Output, target: base.Target) -> list[host_checks.Check]:
    """Checks of the cluster of the kubeconfig; empty for an embedded engine, or if no server
    answers."""

    async def probe(session: client_session.Session) -> list[host_checks.Check]:
        version = await session.read("/version")
        if "windlass" in str(version.get("gitVersion", "")):
            return []
        out.say("\nCluster:")
        checkup: Any = importlib.import_module("windlass.install.preflight")
        found = []
        async for each in checkup.look(session.store):
            found.append(host_checks.Check(**dataclasses.asdict(each)))
            _show(out, found[-1])
        if any(each.name == "objects" for each in found):  # Windlass is installed
            found.append(await _leaders(session))
            _show(out, found[-1])
        return found

    try:
        return client_session.call(target, probe)
    except exit_codes.CliError:
        return []  # the line above says why


async def _leaders(session: client_session.Session) -> host_checks.Check:
    """What the components report of themselves, in their leases."""
    try:
        found = await platform_status.leaders(session)
    except errors.Forbidden:
        return host_checks.Check(
            "leaders", "limited", "you may not look at windlass-system",
            "Whether anything schedules is unknown.",
            "Have a cluster administrator run windlass doctor.",
        )  # fmt: skip
    idle = [each["name"] for each in found if not each["leads"]]
    if found and not idle:
        return host_checks.Check(
            "leaders", "ok", ", ".join(f"{each['name']} by {each['holder']}" for each in found)
        )
    return host_checks.Check(
        "leaders", "missing", f"no process leads: {', '.join(idle) or 'there are no leases'}",
        "Their work stands still.",
        "kubectl get pods -n windlass-system; logs say why, windlass upgrade repairs objects.",
    )  # fmt: skip


def all_checks(target: base.Target) -> Iterator[host_checks.Check]:
    yield from host_checks.checks(host_checks.Machine(states.folder(target.state).path))
    yield cluster_check.check(target)


def _show(out: Output, check: host_checks.Check) -> None:
    """State, name and finding; below it the effect and the remedy."""
    if not out.human:
        return
    found = check.found if check.remedy or not check.meaning else f"{check.found}. {check.meaning}"
    out.say(f"{out.mark(check.state)}{check.name:12}{found}")
    if check.remedy:
        for text in (check.meaning, f"Remedy: {check.remedy}"):
            for line in textwrap.wrap(text, max(30, min(100, terminal_width()) - 10)):
                out.say(f"{'':10}{line}")
