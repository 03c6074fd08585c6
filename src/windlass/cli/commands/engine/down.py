"""`windlass down`: stops the engine of this machine."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib import state_dir as states
from windlass.cli.lib.output import Output

_POLL = 0.05
_ACTIVE = ("Starting", "Running", "Stopping")


@base.command(
    examples=(
        "windlass down                # jobs keep running",
        "windlass down --stop-runs    # hold all jobs first",
    )
)
@click.option(
    "--stop-runs", is_flag=True, help="Suspend all runs first, by their checkpoint contract."
)
@click.option("--timeout", default=60.0, show_default=True, help="Seconds to wait for each step.")
@base.state_option
def down(out: Output, stop_runs: bool, timeout: float, state: str) -> int:
    """Stop the engine. No error if none is running.

    Running runs keep running, and the next `windlass up` finds them again. With --stop-runs they
    are suspended, and after the next `up` they wait until `windlass resume`.
    """
    folder = states.folder(state)
    processes = _running(folder)
    if not processes:
        out.say(f"No engine is running on {folder.path}.")
        out.result({"stopped": [], "runs": []})
        return exit_codes.OK
    runs = _runs(folder, stop_runs, timeout, out)
    with out.progress("Stopping the engine"):
        _stop(folder, processes, timeout)
    for name, process in processes.items():
        out.say(f"stopped {name} (pid {process.pid})")
    if runs and not stop_runs:
        out.hint(f"{len(runs)} run(s) keep running: {', '.join(runs[:5])}")
    elif runs:
        out.hint(f"{len(runs)} run(s) are suspended; after the next `up`: windlass resume RUN")
    stopped = [{"name": name, "pid": process.pid} for name, process in processes.items()]
    out.result({"stopped": stopped, "runs": runs}, names=list(processes))
    return exit_codes.OK


def _running(folder: states.StateFolder) -> dict[str, states.Process]:
    """Running processes: the supervisor, its children, and an unsupervised server."""
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
        # The supervisor stops its children itself, in order.
        processes["supervisor"].terminate()
    else:
        for process in processes.values():
            process.terminate()
    deadline = time.monotonic() + timeout
    while alive := [name for name, process in processes.items() if process.alive()]:
        if time.monotonic() > deadline:
            raise exit_codes.CliError(
                f"{' and '.join(alive)} did not stop within {timeout:.0f} s.",
                f"Use a longer --timeout, or see the logs in {folder.logs}.",
                exit_codes.TIMED_OUT,
            )
        time.sleep(_POLL)


def _runs(folder: states.StateFolder, hold: bool, timeout: float, out: Output) -> list[str]:
    """Names of the active runs; with `stop`, suspends them and waits until they have stopped."""
    target = base.Target(state=str(folder.path))
    if not hold:
        try:
            return client_session.call(target, _active)
        except exit_codes.CliError:
            # A server that does not answer must not prevent its own stop.
            return []
    with out.progress("Suspending all runs"):
        return client_session.call(target, lambda session: _suspend_all(session, timeout))


async def _active(session: client_session.Session) -> list[str]:
    from windlass.kinds.types import run

    found = (await session.store.list(run.Run)).items
    return [f"{r.namespace}/{r.name}" for r in found if r.status.phase in _ACTIVE]


async def _suspend_all(session: client_session.Session, timeout: float) -> list[str]:  # noqa: ASYNC109
    from windlass.kinds.types import run

    active_runs = [r for r in (await session.store.list(run.Run)).items if not r.finished]
    patch: dict[str, Any] = {"spec": {"suspend": True}}
    for one in active_runs:
        if not one.spec.suspend:
            await session.store.patch(run.Run, one.name, one.namespace, patch=patch)
    deadline = time.monotonic() + timeout
    while active := await _active(session):
        if time.monotonic() > deadline:
            raise exit_codes.CliError(
                f"{len(active)} run(s) did not stop within {timeout:.0f} s: {active[0]}.",
                "The engine is still running. Use a longer --timeout, or delete the run.",
                exit_codes.TIMED_OUT,
            )
        await asyncio.sleep(0.2)
    return [f"{one.namespace}/{one.name}" for one in active_runs]
