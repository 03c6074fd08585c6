"""`windlass status`: what runs here, how it is, and what to do when nothing does."""

from __future__ import annotations

import os
import shutil
from typing import Any

from windlass.cli import base, client, exits
from windlass.cli import state as states
from windlass.cli.output import Output

_PHASES = ("Running", "Starting", "Stopping", "Queued", "Succeeded", "Failed", "Stopped")
_LITTLE_SPACE = 256 << 20


@base.command(examples=("windlass status", "windlass status --json | jq .runs"))
@base.target_options
def status(out: Output, target: base.Target) -> int:
    """Show the engine of this machine, its node, its runs by phase and its store.

    The exit code is 6 when nothing runs, so scripts can ask.
    """
    engine = _engine(states.folder(target.state))
    problem: exits.CliError | None = None
    cluster: dict[str, Any] = {}
    try:
        cluster = client.call(target, _cluster)
    except exits.CliError as fault:
        problem = fault
    _show(out, engine, cluster)
    data = {"engine": engine, **cluster, "problem": problem.message if problem else None}
    out.result(data, names=["up" if cluster else "down"])
    if problem:
        if engine["supervisor"]:
            out.hint(f"{problem.message}\n{problem.remedy}")
        else:
            out.hint("Start it with `windlass up`.")
        return problem.code
    return exits.OK


def _engine(folder: states.StateFolder) -> dict[str, Any]:
    """What the state folder tells about the engine of this machine."""
    supervisor, server = folder.supervisor(), folder.server()
    children = folder.children() if supervisor else {}
    return {
        "state": str(folder.path),
        "supervisor": supervisor.pid if supervisor else None,
        "server": {"pid": server.pid, "url": server.url, "version": server.version}
        if server
        else None,
        "agent": next(
            (
                c.process.pid
                for name, c in children.items()
                if name == "agent" and c.process.alive()
            ),
            None,
        ),
        "restarts": {name: child.restarts for name, child in children.items()},
        "storeBytes": _store_size(folder),
    }


async def _cluster(session: client.Session) -> dict[str, Any]:
    """What the API tells: nodes and runs."""
    from windlass.kinds import kubernetes, run

    nodes = (await session.store.list(kubernetes.Node)).items
    runs = (await session.store.list(run.Run)).items
    phases: list[str] = [one.status.phase for one in runs]
    return {
        "address": session.store.access.address,
        "nodes": [
            {
                "name": node.name,
                "ready": node.is_ready,
                "allocatable": node.status.allocatable or {},
            }
            for node in nodes
        ],
        "runs": {phase: phases.count(phase) for phase in _PHASES},
    }


def _show(out: Output, engine: dict[str, Any], cluster: dict[str, Any]) -> None:
    server = engine["server"]
    if server:
        out.say(f"server   {server['url']} (pid {server['pid']}, version {server['version']})")
        agent = f"pid {engine['agent']}" if engine["agent"] else "not running"
        out.say(f"agent    {agent}")
    elif cluster:
        out.say(f"server   {cluster['address']} (not of this machine)")
    else:
        out.say(f"No engine runs on {engine['state']}.")
    for name, count in engine["restarts"].items():
        if count:
            out.say(f"         the {name} was restarted {count} time(s)")
    for node in cluster.get("nodes", []):
        amounts = ", ".join(f"{key} {value}" for key, value in node["allocatable"].items())
        ready = "ready" if node["ready"] else "NOT ready"
        out.say(f"node     {node['name']} {ready} ({amounts})")
    if cluster:
        counts = [f"{count} {phase}" for phase, count in cluster["runs"].items() if count]
        out.say(f"runs     {', '.join(counts) or 'none yet'}")
    if engine["storeBytes"]:
        out.say(f"store    {engine['storeBytes'] / 1e6:.1f} MB in {engine['state']}")
        free = shutil.disk_usage(engine["state"]).free
        if free < _LITTLE_SPACE:
            out.warn(f"The disk of {engine['state']} is almost full ({free / 1e6:.0f} MB left).")


def _store_size(folder: states.StateFolder) -> int:
    paths = (folder.database, folder.database.with_name(folder.database.name + "-wal"))
    return sum(os.path.getsize(path) for path in paths if path.exists())
