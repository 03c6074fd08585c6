"""`windlass export-state`: what the scheduler of a platform sees now, as a file for `simulate`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import click

from windlass.cli import base, client, exits
from windlass.cli.output import Output

if TYPE_CHECKING:
    from windlass.kinds.meta import Object
    from windlass.sim.exchange import Export

T = TypeVar("T", bound="Object")
_PAGE = 500


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
    """Write nodes, queues, who runs and who waits to FILE (`-`: stdout), of all namespaces.

    `windlass simulate --state FILE` goes on from there: what if this queue had more, what if this
    pool were half. You need the right to list nodes, pods, runs and queues. The file holds names of
    users, queues and nodes, but no commands, environments or secrets.
    """
    from windlass.sim import exchange

    async def work(session: client.Session) -> Export:
        return await _read(session)

    export = client.call(target, work)
    text = exchange.dumps(export)
    if str(file) == "-":
        sys.stdout.buffer.write(text + b"\n")
        return
    try:
        file.write_bytes(text)
    except OSError as problem:
        raise exits.CliError(
            f"{file} cannot be written: {problem.strerror or problem}.", "Name another file."
        ) from problem
    facts = export.facts
    running = sum(each.unit.kin is not None for each in facts.running)
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
        f"{file}: {data['nodes']} nodes, {data['queues']} queues, {running} units run, "
        f"{data['waiting']} wait, {data['otherPods']} other pods"
    )
    out.hint(f"Play it with: windlass simulate --state {file}")
    out.result(data, names=[str(file)])


async def _read(session: client.Session) -> Export:
    """As a new leader of the scheduler does: list, and see everything as added."""
    from windlass.control import picture
    from windlass.kinds import kubernetes, queue, reservation, times
    from windlass.kinds.run import Run
    from windlass.sim import exchange

    seen = picture.Picture()
    for node in await _all(session, kubernetes.Node):
        seen.see_node("ADDED", None, node)
    for each in await _all(session, queue.Queue):
        seen.see_queue("ADDED", None, each)
    for reserved in await _all(session, reservation.Reservation):
        seen.reservations.see("ADDED", None, reserved)
    for owner in await _all(session, Run):
        seen.see_run("ADDED", None, owner)
    for pod in await _all(session, kubernetes.Pod):
        seen.see_pod("ADDED", None, pod)
    now = times.now().timestamp()
    snapshot = seen.bring_up(seen.collect(now))
    return exchange.taken(snapshot, now)


async def _all(session: client.Session, kind: type[T]) -> list[T]:
    found: list[T] = []
    token = ""
    while True:
        page = await session.store.list(kind, limit=_PAGE, continue_token=token)
        found += page.items
        token = page.continue_token
        if not token:
            return found
