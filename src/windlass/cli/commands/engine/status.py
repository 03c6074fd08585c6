"""`windlass status`: the engine of this machine, or the installation on a cluster.

`cli.engine.platform_status` reads what a server knows; this module adds the processes of this
machine, and prints.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

from windlass.cli.engine import other_engines, platform_status
from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib import state_dir as states
from windlass.cli.lib.output import Output
from windlass.kinds.values import quantity, times

_LITTLE_SPACE = 256 << 20
_MOST_NODES = 8
"""Of more nodes the number is printed, and the names of those that are not ready."""


@base.command(examples=("windlass status", "windlass status --json | jq .runs"))
@base.target_options
def status(out: Output, target: base.Target) -> int:
    """Show the engine of this machine, or the installation on a cluster: its parts, their
    leaders, the last decision, changes that wait, errors of the last five minutes, nodes and runs
    by phase.

    The exit code is 6 if no server answers, and 1 if a part does not work.
    """
    engine = _engine(states.folder(target.state))
    problem: exit_codes.CliError | None = None
    cluster: dict[str, Any] = {}
    try:
        cluster = client_session.call(target, platform_status.read)
    except exit_codes.CliError as fault:
        problem = fault
    _show(out, engine, cluster)
    if engine["supervisor"] and engine["otherEngines"]:
        out.warn(other_engines.warning([Path(each) for each in engine["otherEngines"]]))
    data = {"engine": engine, **cluster, "problem": problem.message if problem else None}
    broken = list(platform_status.problems(cluster)) if cluster else []
    data["problems"] = broken
    out.result(data, names=["down" if problem else "degraded" if broken else "up"])
    if problem:
        if engine["supervisor"]:
            out.hint(f"{problem.message}\n{problem.remedy}")
        else:
            out.hint("Start it with `windlass up`.")
        return problem.code
    for each in broken:
        out.warn(each)
    if broken:
        out.hint("Find the cause and the remedy: windlass doctor")
    return exit_codes.FAILED if broken else exit_codes.OK


def _engine(folder: states.StateFolder) -> dict[str, Any]:
    """The engine of this machine, from its state folder."""
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
        "otherEngines": [str(each) for each in other_engines.states(folder.path)],
    }


def _show(out: Output, engine: dict[str, Any], cluster: dict[str, Any]) -> None:
    if not out.human:
        return
    if cluster.get("kubernetes"):
        _show_installation(out, cluster)
    else:
        _show_engine(out, engine, cluster)
    for leader in cluster.get("leaders", ()):
        by = f"; {leader['holder']} leads" if leader["holder"] and cluster["kubernetes"] else ""
        out.say(f"{leader['name']:13}{_work(leader)}{by}")
    if cluster:
        _show_nodes(out, cluster["nodes"])
        counts = [f"{count} {phase}" for phase, count in cluster["runs"].items() if count]
        out.say(f"{'runs':13}{', '.join(counts) or 'none yet'}")
        if cluster["unreadable"]:
            out.hint(f"You may not read: {', '.join(cluster['unreadable'])}.")
    if engine["storeBytes"] and not cluster.get("kubernetes"):
        out.say(f"{'store':13}{engine['storeBytes'] / 1e6:.1f} MB in {engine['state']}")
        free = shutil.disk_usage(engine["state"]).free
        if free < _LITTLE_SPACE:
            out.warn(f"The disk of {engine['state']} is almost full ({free / 1e6:.0f} MB left).")


def _show_engine(out: Output, engine: dict[str, Any], cluster: dict[str, Any]) -> None:
    server = engine["server"]
    if server:
        pid, version = server["pid"], server["version"]
        out.say(f"{'server':13}{server['url']} (pid {pid}, version {version})")
        agent = f"pid {engine['agent']}" if engine["agent"] else "not running"
        out.say(f"{'agent':13}{agent}")
    elif cluster:
        out.say(f"{'server':13}{cluster['address']} (another machine)")
    else:
        out.say(f"No engine is running on {engine['state']}.")
    for name, count in engine["restarts"].items():
        if count:
            out.say(f"{'':13}the {name} was restarted {count} time(s)")


def _show_installation(out: Output, cluster: dict[str, Any]) -> None:
    out.say(f"{'cluster':13}{cluster['address']} (Kubernetes {cluster['kubernetes']})")
    installed = cluster["installed"]
    if installed is None:
        return
    out.say(f"{'windlass':13}version {installed['version']}, image {installed['image']}")
    listed = (f"{part['name']} {part['ready']}" for part in installed["parts"])
    out.say(f"{'ready':13}{', '.join(listed)}")


def _show_nodes(out: Output, nodes: list[dict[str, Any]]) -> None:
    if len(nodes) > _MOST_NODES:
        absent = [node["name"] for node in nodes if not node["ready"]]
        text = f"{len(nodes)}, {len(nodes) - len(absent)} ready"
        if absent:
            text += f"; NOT ready: {', '.join(absent[:_MOST_NODES])}"
            text += out.more() if len(absent) > _MOST_NODES else ""
        out.say(f"{'nodes':13}{text}")
        return
    for node in nodes:
        amounts = ", ".join(_amount(*each) for each in node["allocatable"].items())
        ready = "ready" if node["ready"] else "NOT ready"
        out.say(f"{'node':13}{node['name']} {ready} ({amounts})")


def _amount(resource: str, value: str) -> str:
    is_bytes = resource in ("memory", "ephemeral-storage")
    return f"{resource} {quantity.shortened(quantity.whole(value)) if is_bytes else value}"


def _work(leader: dict[str, Any]) -> str:
    """What the leader of a part does, on one line."""
    if not leader["leads"]:
        return "NO LEADER"
    work = leader["work"]
    if work is None:
        return "it has not reported yet"
    what = "last decision" if leader["name"] == "scheduler" else "last work"
    done = f"no {what[5:]} yet"
    if work["lastAt"]:
        ago = (times.now() - times.parse(work["lastAt"])).total_seconds()
        done = f"{what} {max(0.0, ago):.0f} s ago in {work['lastSeconds'] * 1000:.0f} ms"
    behind = f"{work['lagSeconds']:.1f} s behind" if work["waiting"] else "up to date"
    count = work["recentErrors"]
    return f"{done}, {behind}, {count or 'no'} error{'' if count == 1 else 's'} in 5 min"


def _store_size(folder: states.StateFolder) -> int:
    paths = (folder.database, folder.database.with_name(folder.database.name + "-wal"))
    return sum(os.path.getsize(path) for path in paths if path.exists())
