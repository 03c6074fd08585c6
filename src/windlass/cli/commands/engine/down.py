"""`windlass down`: stops the engine of this machine, and says what it stopped."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from windlass.cli import base, client, exits
from windlass.cli import state as states
from windlass.cli.output import Output

_POLL = 0.05
_ACTIVE = ("Starting", "Running", "Stopping")


@base.command(
    examples=(
        "windlass down                # jobs go on by themselves",
        "windlass down --stop-runs    # hold all jobs first",
    )
)
@click.option(
    "--stop-runs", is_flag=True, help="First hold every run: it stops by its checkpoint contract."
)
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for each step.")
@base.state_option
def down(out: Output, stop_runs: bool, timeout: float, state: str) -> int:
    """Stop the engine. It is no error if none runs.

    Runs that have started go on by themselves, and the next `windlass up` finds them again. With
    --stop-runs they are held (spec.suspend) and wait, after the next `up`, until they are released.
    """
    folder = states.folder(state)
    processes = _running(folder)
    if not processes:
        out.say(f"Nothing is running on {folder.path}.")
        out.result({"stopped": [], "runs": []})
        return exits.OK
    runs = _runs(folder, stop_runs, timeout, out)
    with out.progress("Stopping the engine"):
        _stop(folder, processes, timeout)
    for name, process in processes.items():
        out.say(f"stopped {name} (pid {process.pid})")
    if runs and not stop_runs:
        out.hint(f"{len(runs)} run(s) go on by themselves: {', '.join(runs[:5])}")
    elif runs:
        out.hint(f"{len(runs)} run(s) are held; after the next `up`: windlass resume RUN")
    stopped = [{"name": name, "pid": process.pid} for name, process in processes.items()]
    out.result({"stopped": stopped, "runs": runs}, names=list(processes))
    return exits.OK


def _running(folder: states.StateFolder) -> dict[str, states.Process]:
    """What is alive: the supervisor, its children, and a server that nobody supervises."""
    found: dict[str, states.Process] = {}
    if supervisor := folder.supervisor():
        found["supervisor"] = supervisor
    for name, child in folder.children().items():
        if child.process.alive():
            found[name] = child.process
    if (server := folder.server()) and "server" not in found:
        found["server"] = server
    return found


def _stop(folder: states.StateFolder, processes: dict[str, states.Process], timeout: float) -> None:
    if "supervisor" in processes:
        # It stops its children itself, in order.
        processes["supervisor"].terminate()
    else:
        for process in processes.values():
            process.terminate()
    deadline = time.monotonic() + timeout
    while alive := [name for name, process in processes.items() if process.alive()]:
        if time.monotonic() > deadline:
            raise exits.CliError(
                f"{' and '.join(alive)} did not stop within {timeout:.0f} s.",
                f"Wait longer with --timeout, or look into {folder.logs}.",
                exits.TIMED_OUT,
            )
        time.sleep(_POLL)


def _runs(folder: states.StateFolder, hold: bool, timeout: float, out: Output) -> list[str]:
    """Names of the runs that are active; held and waited for if asked."""
    target = base.Target(state=str(folder.path))
    if not hold:
        try:
            return client.call(target, _active)
        except exits.CliError:
            # A server that does not answer must not keep us from stopping it.
            return []
    with out.progress("Holding all runs"):
        return client.call(target, lambda session: _hold_all(session, timeout))


async def _active(session: client.Session) -> list[str]:
    from windlass.kinds import run

    found = (await session.store.list(run.Run)).items
    return [f"{r.namespace}/{r.name}" for r in found if r.status.phase in _ACTIVE]


async def _hold_all(session: client.Session, patience: float) -> list[str]:
    from windlass.kinds import run

    held = [r for r in (await session.store.list(run.Run)).items if not r.finished]
    patch: dict[str, Any] = {"spec": {"suspend": True}}
    for one in held:
        if not one.spec.suspend:
            await session.store.patch(run.Run, one.name, one.namespace, patch=patch)
    deadline = time.monotonic() + patience
    while active := await _active(session):
        if time.monotonic() > deadline:
            raise exits.CliError(
                f"{len(active)} run(s) did not stop within {patience:.0f} s: {active[0]}.",
                "The engine is still up. Wait longer with --timeout, or delete the run.",
                exits.TIMED_OUT,
            )
        await asyncio.sleep(0.2)
    return [f"{one.namespace}/{one.name}" for one in held]
