"""`windlass export-state`: the scheduler's view of a cluster, as a file for `simulate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli.engine import scheduler_view
from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.output import Output, noticing_closed_pipes

if TYPE_CHECKING:
    from windlass.sim.inputs.state_export import Export


@base.command(
    examples=(
        "windlass export-state state.json",
        "windlass simulate --state state.json --set queue.support.limit.gpu=+16",
        "windlass export-state - --context prod | jq '.facts.nodes | length'",
    )
)
@click.argument("file", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@base.target_options
def export_state(out: Output, file: Path, target: base.Target) -> None:
    """Write nodes, queues, running and waiting workloads of all namespaces to FILE (`-`: stdout).

    `windlass simulate --state FILE` continues from there, for example with a larger queue or fewer
    nodes. You need permission to list nodes, pods, runs and queues. FILE contains names of users,
    queues and nodes, but no commands, environments or secrets.
    """
    from windlass.sim.inputs import state_export

    async def work(session: client_session.Session) -> Export:
        return await scheduler_view.read(session)

    export = client_session.call(target, work)
    text = state_export.dumps(export)
    if str(file) == "-":
        with noticing_closed_pipes():
            sys.stdout.buffer.write(text + b"\n")
            sys.stdout.buffer.flush()
        return
    try:
        file.write_bytes(text)
    except OSError as problem:
        raise exit_codes.CliError(
            f"{file} cannot be written: {problem.strerror or problem}.", "Choose another file."
        ) from problem
    facts = export.facts
    running = sum(each.workload.history_key is not None for each in facts.running)
    data = {
        "file": str(file),
        "at": export.at,
        "nodes": len(facts.nodes),
        "queues": len(facts.queues),
        "running": running,
        "waiting": len(facts.waiting),
        "otherPods": len(facts.running) - running,
    }
    out.say(
        f"{file}: {data['nodes']} nodes, {data['queues']} queues, {running} workloads running, "
        f"{data['waiting']} waiting, {data['otherPods']} other pods"
    )
    out.hint(f"Simulate it: windlass simulate --state {file}")
    out.result(data, names=[str(file)])
