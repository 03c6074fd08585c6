"""`windlass exec`: runs a command in a pod of a run."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Iterator
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names
from windlass.cli.lib.output import Output, noticing_closed_pipes
from windlass.kinds.types import core
from windlass.kinds.types import run as kind
from windlass.store import errors


@base.command(
    name="exec",
    examples=(
        "windlass exec train",
        "windlass exec train --rank 1 -- nvidia-smi",
        "windlass exec train -- sh -c 'ls -l $WINDLASS_ROOT'",
    ),
)
@click.argument("name", metavar="RUN|POD", shell_complete=kind_names.complete_names)
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
@click.option("--role", default="", help="A replica of this role. [default: the first that runs]")
@click.option("--rank", type=click.IntRange(min=0), help="The replica with this index.")
@click.option(
    "-i", "--stdin", is_flag=True, hidden=True, help="For kubectl users; stdin is always connected."
)
@click.option(
    "-t",
    "--tty",
    is_flag=True,
    hidden=True,
    help="For kubectl users; a terminal is always passed on.",
)
@base.target_options
def exec_(
    out: Output,
    name: str,
    command: tuple[str, ...],
    role: str,
    rank: int | None,
    stdin: bool,  # noqa: ARG001 - a habit from kubectl and docker that costs nothing
    tty: bool,  # noqa: ARG001
    target: base.Target,
) -> int:
    """Run COMMAND (default: a shell) in a replica of RUN, with your terminal if there is one."""
    interactive = sys.stdin.isatty() and sys.stdout.isatty() and out.human
    argv = command or ("sh",)

    async def work(session: client_session.Session) -> int:
        from windlass.store.kubernetes import exec_stream

        pod = await _pod(session, name.removeprefix("run/"), role, rank)
        async with exec_stream.open_session(
            session.store.access, pod, session.namespace, argv, stdin=True, tty=interactive
        ) as process:
            with _raw_terminal() if interactive else contextlib.nullcontext():
                return await _talk(process, interactive)

    return client_session.call(target, work)


async def _pod(session: client_session.Session, name: str, role: str, rank: int | None) -> str:
    labels = [f"{kind.LABEL_RUN}={name}"]
    labels += [f"{kind.LABEL_ROLE}={role}"] if role else []
    labels += [f"{kind.LABEL_INDEX}={rank}"] if rank is not None else []
    listed = await session.store.list(core.Pod, session.namespace, label_selector=",".join(labels))
    running = [pod for pod in listed.items if pod.status.phase == "Running"]
    if running:
        return min(
            running, key=lambda pod: (pod.metadata.labels or {}).get(kind.LABEL_INDEX, "")
        ).name
    with contextlib.suppress(errors.NotFound):
        return (await session.store.get(core.Pod, name, session.namespace)).name
    await session.store.get(kind.Run, name, session.namespace)
    replica = f"{role or 'replica'} {'' if rank is None else rank}".strip()
    raise exit_codes.CliError(
        f"No {replica} of run/{name} is running.",
        f"Explain its state: windlass why {name}",
        exit_codes.NOT_FOUND,
    )


async def _talk(process: Any, interactive: bool) -> int:
    loop = asyncio.get_running_loop()
    typing = asyncio.create_task(_send_input(process))
    if interactive:
        await _send_size(process)
        loop.add_signal_handler(signal.SIGWINCH, lambda: asyncio.ensure_future(_send_size(process)))
    try:
        async for channel, data in process.output():
            stream = sys.stdout if channel == 1 else sys.stderr
            with noticing_closed_pipes():
                stream.buffer.write(data) if hasattr(stream, "buffer") else stream.write(
                    data.decode(errors="replace")
                )
                stream.flush()
    finally:
        typing.cancel()
    if process.exit_code is None and process.message:
        raise exit_codes.CliError(exit_codes.sentence(process.message))
    if process.exit_code is None:
        raise exit_codes.CliError(
            "The connection to the pod ended.", "Try again.", exit_codes.NO_SERVER
        )
    return int(process.exit_code)


async def _send_input(process: Any) -> None:
    """Sends stdin until its end. It is read without a thread, because a thread that waits for the
    keyboard cannot be stopped."""
    loop = asyncio.get_running_loop()
    typed: asyncio.Queue[bytes] = asyncio.Queue()
    try:
        handle = sys.stdin.fileno()
        # Read in the readiness callback: a second read, later, might wait for the next key.
        loop.add_reader(handle, lambda: typed.put_nowait(os.read(handle, 1 << 14)))
    except (OSError, ValueError):
        # A regular file or no stdin: the loop cannot watch it, and reading does not block.
        data = sys.stdin.read() if sys.stdin else ""
        if data:
            await process.send(data.encode())
        await process.end_input()
        return
    try:
        while piece := await typed.get():
            await process.send(piece)
        loop.remove_reader(handle)
        await process.end_input()
    finally:
        loop.remove_reader(handle)


async def _send_size(process: Any) -> None:
    size = os.get_terminal_size()
    with contextlib.suppress(ConnectionError):
        await process.resize(size.columns, size.lines)


@contextlib.contextmanager
def _raw_terminal() -> Iterator[None]:
    """Keys go to the process as they are, Ctrl-C too."""
    import termios
    import tty

    handle = sys.stdin.fileno()
    before = termios.tcgetattr(handle)
    try:
        # TCSADRAIN keeps what was typed ahead.
        tty.setraw(handle, termios.TCSADRAIN)
        yield
    finally:
        termios.tcsetattr(handle, termios.TCSADRAIN, before)
