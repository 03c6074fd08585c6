"""`windlass port-forward`: reaches a port of a replica from this machine."""

from __future__ import annotations

import asyncio
import contextlib

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names
from windlass.cli.lib.output import Output, flush


@base.command(
    name="port-forward",
    examples=(
        "windlass port-forward notebook 8888",
        "windlass port-forward train/worker-1 6006:tensorboard",
        "windlass port-forward train :6006       # any free port of this machine",
    ),
)
@click.argument("name", metavar="RUN[/ROLE-INDEX]", shell_complete=kind_names.complete_names)
@click.argument("ports", metavar="[LOCAL:]REMOTE...", nargs=-1, required=True)
@click.option(
    "--address", default="127.0.0.1", metavar="IP",
    help="Address of this machine to listen on. [default: 127.0.0.1]",
)  # fmt: skip
@base.target_options
def port_forward(
    out: Output, name: str, ports: tuple[str, ...], address: str, target: base.Target
) -> int:
    """Forward LOCAL of this machine to REMOTE of a running replica of RUN, until Ctrl-C.

    REMOTE is a number, or the name of a port that the run declares with --port.
    """
    wanted = [_parse(text) for text in ports]

    async def work(session: client_session.Session) -> int:
        from windlass.sdk.files import places, sources
        from windlass.store.kubernetes import port_forward

        place = places.parse(f"{name}:")
        if place is None:
            raise exit_codes.CliError(f"{name} is no run.", "Write RUN or RUN/ROLE-INDEX.")
        pod = await sources.running_pod(session.store, session.namespace, place)
        numbers = {each.name: each.container_port for each in pod.spec.containers[0].ports or ()}
        async with contextlib.AsyncExitStack() as stack:
            ended = []
            for local, remote in wanted:
                port = _number(remote, numbers, name)
                number, closed = await stack.enter_async_context(
                    port_forward.listening(
                        session.store.access, pod.name, pod.namespace, port, host=address,
                        local=port if local is None else local,
                        on_problem=lambda text: out.warn(places.shown(text, 300)),
                    )
                )  # fmt: skip
                out.say(f"Forwarding {address}:{number} to {name}:{remote}")
                out.item({"local": number, "remote": port, "pod": pod.name}, name=str(number))
                flush()
                ended.append(asyncio.create_task(closed.wait()))
            try:
                await asyncio.wait(ended, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for task in ended:
                    task.cancel()
        raise exit_codes.CliError(
            f"The connection to pod {pod.name} ended.", "Start it again when a replica runs.",
            exit_codes.NO_SERVER,
        )  # fmt: skip

    try:
        return client_session.call(target, work)
    except KeyboardInterrupt:
        return exit_codes.INTERRUPTED


def _parse(text: str) -> tuple[int | None, str]:
    """The local port (None: the same number; 0: any), and the remote one."""
    local, colon, remote = text.rpartition(":")
    usual = 0 if colon else None
    if not remote or (local and not (local.isdecimal() and 0 < int(local) < 65536)):
        raise exit_codes.CliError(
            f"{text} names no ports.", "Write REMOTE, LOCAL:REMOTE or :REMOTE.", exit_codes.USAGE
        )
    return (int(local) if local else usual), remote


def _number(remote: str, named: dict[str, int], run: str) -> int:
    if remote in named:
        return named[remote]
    if remote.isdecimal() and 0 < int(remote) < 65536:
        return int(remote)
    known = f"It declares {', '.join(sorted(named))}." if named else "It declares none (--port)."
    raise exit_codes.CliError(f"{run} has no port {remote}.", known, exit_codes.NOT_FOUND)
