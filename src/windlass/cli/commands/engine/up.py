"""`windlass up`: starts the engine of this machine, in the foreground or detached.

The supervisor is a process of its own (`cli.supervisor`); this one shows what happens, waits until
a node is ready, tells how to go on, and either leaves or stays until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from windlass.cli import base, exits
from windlass.cli import state as states
from windlass.cli.output import Output
from windlass.kinds import hostpods

if TYPE_CHECKING:
    from windlass.kinds import kubernetes

CONTEXT = "windlass"
_POLL = 0.05
_TEAMS = {
    "user": "each namespace's jobs run under a user id of their own; yours in `default` as you",
    "process": "kept apart by the API only: all jobs run as this user, on the same files",
}
_LOG_LINES = 15
_ORPHAN_SECONDS = 15.0
_ROOM_BYTES = 32 << 20
"""The store with what it sets aside for a full disk, certificates and first logs."""


@base.command(
    examples=(
        "windlass up                       # until Ctrl-C",
        "windlass up --detach",
        "windlass up -d --state /data/windlass --listen 127.0.0.1:7443",
        "windlass up --fake-nodes 16 --gpus 8 --racks 4   # try gangs and quotas on a laptop",
    )
)
@click.option("-d", "--detach", is_flag=True, help="Return when it is ready; `down` stops it.")
@click.option("--listen", default="", metavar="HOST:PORT", help="Where the API listens.")
@click.option(
    "--isolation",
    type=click.Choice(("auto", "user", "process")),
    default="auto",
    help="Whether each namespace's jobs run under a user id of their own. [default: if root]",
)
@click.option(
    "--fake-nodes", type=click.IntRange(0, 4096), default=0, help="Nodes that only pretend to run."
)
@click.option("--gpus", type=click.IntRange(0, 64), default=0, help="Of each fake node.")
@click.option("--racks", type=click.IntRange(1, 256), default=1, help="Of the fake nodes.")
@click.option(
    "--timeout", default=60.0, show_default=True, help="Seconds to wait until it is ready."
)
@click.option(
    "--kubectl-context/--no-kubectl-context",
    "write_context",
    default=None,
    help="Add the context `windlass` to kubectl's own file. [default: for ~/.windlass only]",
)
@base.state_option
def up(
    out: Output,
    detach: bool,
    listen: str,
    isolation: str,
    fake_nodes: int,
    gpus: int,
    racks: int,
    timeout: float,
    write_context: bool | None,
    state: str,
) -> int:
    """Start the engine on this machine: API server, scheduler and node agent.

    Jobs belong to neither: they go on when the engine stops or restarts, and it finds them again.
    """
    folder = states.folder(state)
    extra = ["--isolation", isolation]
    if fake_nodes:
        extra += ["--fake", str(fake_nodes), str(gpus), str(racks)]
    elif gpus or racks != 1:
        raise exits.CliError(
            "--gpus and --racks describe fake nodes.", "Add --fake-nodes N.", exits.USAGE
        )
    if folder.supervisor() is None and folder.server() is not None:
        with out.progress("Waiting for the server of an earlier engine to end"):
            _wait_for_orphan(folder)
    _refuse_second(folder)
    _refuse_taken(listen)
    _refuse_full(folder)
    supervisor = _start(folder, listen, detach, extra)
    try:
        begun = time.monotonic()
        with out.progress("Starting the API server"):
            _wait_for_server(folder, supervisor, begun + timeout)
        with out.progress("Starting the node agent"):
            wanted = 1 + fake_nodes
            ready = asyncio.run(_wait_for_nodes(folder, supervisor, begun + timeout, wanted))
        seconds = time.monotonic() - begun
        context = _write_context(out, folder, write_context)
        _announce(out, folder, ready, context, seconds, detach)
        return exits.OK if detach else _stay(out, folder, supervisor)
    except BaseException as problem:
        if detach and isinstance(problem, BrokenPipeError):
            raise  # `up --detach | head -1`: it is up, and whoever reads no further knows
        _stop(supervisor)
        if isinstance(problem, KeyboardInterrupt):
            out.hint("stopped")
            return exits.INTERRUPTED
        raise


def _wait_for_orphan(folder: states.StateFolder) -> None:
    """A supervisor that was killed takes its server with it, but that takes a moment."""
    deadline = time.monotonic() + _ORPHAN_SECONDS
    while folder.server() is not None and time.monotonic() < deadline:
        time.sleep(_POLL)


def _refuse_second(folder: states.StateFolder) -> None:
    running = folder.supervisor()
    server = folder.server()
    if running is None and server is None:
        return
    address = f" at {server.url}" if server else ""
    pid = running.pid if running else server.pid if server else 0
    raise exits.CliError(
        f"An engine is already running{address} (pid {pid}, state in {folder.path}).",
        "See it with `windlass status`, stop it with `windlass down`.",
        exits.ALREADY_RUNNING,
    )


def _refuse_taken(listen: str) -> None:
    """Before anything is made. What is no address, or is taken in this moment, the server tells."""
    host, _, port = listen.rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_server((host.strip("[]"), int(port)), family=_family(host)).close()
    except (OSError, OverflowError) as problem:
        why = (isinstance(problem, OSError) and problem.strerror) or str(problem)
        raise exits.CliError(
            f"Cannot listen on {listen}: {why}.", "Choose another address with --listen HOST:PORT."
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _refuse_full(folder: states.StateFolder) -> None:
    """A new engine needs some room. One that was there may start without: to delete things."""
    if folder.path.exists():
        return
    there = next(each for each in folder.path.absolute().parents if each.exists())
    free = shutil.disk_usage(there).free
    if free < _ROOM_BYTES:
        raise exits.CliError(
            f"The disk of {there} is full: {free >> 20} MiB are free, and {_ROOM_BYTES >> 20} MiB "
            "are needed to begin.",
            "Free some space there, or choose another place with --state DIR.",
        )


def _start(
    folder: states.StateFolder, listen: str, detach: bool, extra: list[str]
) -> subprocess.Popen[bytes]:
    try:
        # Tokens and logs of jobs lie in it: for its owner only, from the first moment.
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.logs.mkdir(mode=0o700, exist_ok=True)
    except OSError as problem:
        raise exits.CliError(
            f"The state folder {folder.path} cannot be made: {problem.strerror}.",
            "Choose another one with --state DIR.",
        ) from None
    argv = [sys.executable, "-m", "windlass.cli.supervisor", "--state", str(folder.path)]
    argv += ["--listen", listen] if listen else []
    argv += [*extra] if detach else [*extra, "--with-parent"]
    with (folder.logs / "supervisor.log").open("ab") as log:
        return subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            cwd="/",
            start_new_session=True,
        )


def _wait_for_server(
    folder: states.StateFolder, supervisor: subprocess.Popen[bytes], deadline: float
) -> None:
    while folder.server() is None or not folder.kubeconfig.exists():
        _check_alive(folder, supervisor, "server", deadline)
        time.sleep(_POLL)


async def _wait_for_nodes(
    folder: states.StateFolder, supervisor: subprocess.Popen[bytes], deadline: float, wanted: int
) -> dict[str, dict[str, str]]:
    """The ready nodes, as soon as there are enough; each with what it holds its pods to."""
    from windlass.kinds import kubernetes
    from windlass.store import connect, errors

    store = connect.open_store(str(folder.kubeconfig))
    try:
        while True:
            try:
                found = (await store.list(kubernetes.Node)).items
            except errors.Unavailable:
                found = []
            ready = [node for node in found if node.is_ready]
            if len(ready) >= wanted:
                return {node.name: _held(node) for node in ready}
            _check_alive(folder, supervisor, "agent", deadline)
            await asyncio.sleep(_POLL)
    finally:
        await store.close()


def _held(node: kubernetes.Node) -> dict[str, str]:
    """What the node's agent says that it holds pods to; nothing for a node that is not there."""
    if (node.metadata.labels or {}).get("windlass.dev/fake"):
        return {}
    told = (node.metadata.annotations or {}).get(hostpods.HELD, "{}")
    return {str(key): str(value) for key, value in json.loads(told).items()}


def _check_alive(
    folder: states.StateFolder, supervisor: subprocess.Popen[bytes], child: str, deadline: float
) -> None:
    """Raises when what is waited for cannot come any more."""
    ended = supervisor.poll()
    if ended == exits.ALREADY_RUNNING:
        _refuse_second(folder)
        raise exits.CliError(
            f"Another `windlass up` is just starting on {folder.path}.",
            "See it with `windlass status`.",
            exits.ALREADY_RUNNING,
        )
    log = folder.logs / f"{child if ended is None else 'supervisor'}.log"
    facts = folder.children().get(child)
    if ended is not None:
        raise exits.CliError(f"The engine ended with code {ended}.", _tail(log))
    if facts is not None and facts.restarts >= 3:
        if complaint := _complaint(log):
            message, _, remedy = complaint.partition("; ")
            raise exits.CliError(exits.sentence(message), exits.sentence(remedy))
        raise exits.CliError(
            f"The {child} does not start: it ended {facts.restarts} times, "
            f"last with code {facts.last_exit}.",
            _tail(log),
        )
    if time.monotonic() > deadline:
        raise exits.CliError(
            f"The {child} was not ready in time.",
            f"Allow more with --timeout.\n{_tail(log)}",
            exits.TIMED_OUT,
        )


def _write_context(
    out: Output, folder: states.StateFolder, wanted: bool | None
) -> tuple[Path, str] | None:
    """Adds our context to the file kubectl reads; another state folder's only on demand."""
    if not (folder.is_default if wanted is None else wanted):
        return None
    from windlass.store import errors
    from windlass.store.kubernetes import kubeconfig

    named = kubeconfig.split_list(os.environ.get("KUBECONFIG", ""))
    path = named[0] if named else Path.home() / ".kube" / "config"
    try:
        _copy_context(folder.kubeconfig, path)
    except (errors.ApiError, OSError) as problem:
        out.warn(f"The context {CONTEXT} could not be added to {path}: {problem}.")
        return None
    return path, CONTEXT


def _copy_context(source: Path, path: Path) -> None:
    import yaml

    from windlass.store.kubernetes import kubeconfig

    content = yaml.safe_load(source.read_text())
    kubeconfig.merge_context(
        path, CONTEXT, content["clusters"][0]["cluster"], content["users"][0]["user"]
    )


def _announce(
    out: Output,
    folder: states.StateFolder,
    ready: dict[str, dict[str, str]],
    context: tuple[Path, str] | None,
    seconds: float,
    detach: bool,
) -> None:
    server = folder.server()
    url = server.url if server else ""
    flag = f"--context {CONTEXT}" if context else f"--kubeconfig {folder.kubeconfig}"
    option = "" if folder.is_default else f" --state {folder.path}"
    out.say(f"Windlass is up at {url} (ready in {seconds:.1f} s).")
    real = [name for name, held in ready.items() if held]
    more = f" and {len(ready) - len(real)} that pretend" if len(ready) > len(real) else ""
    out.say(f"  node     {', '.join(real)}{more}")
    for held in (ready[name] for name in real):
        out.say(f"  limits   {held.get('limits', '')}")
        out.say(f"  teams    {_TEAMS[held.get('isolation', 'process')]}")
    out.say(f"  state    {folder.path} (logs in {folder.logs})")
    out.say(f"  kubectl  kubectl {flag} get runs")
    if context:
        out.say(f"           (context {CONTEXT} written to {context[0]})")
    out.hint(f"Try: windlass run{option} -- echo hello")
    out.hint(f"Stop: windlass down{option}" if detach else "Stop: Ctrl-C")
    data = {
        "url": url,
        "pid": server.pid if server else 0,
        "state": str(folder.path),
        "kubeconfig": str(folder.kubeconfig),
        "context": context[1] if context else None,
        "nodes": list(ready),
        "held": {name: held for name, held in ready.items() if held},
    }
    out.result(data, names=[url])
    sys.stdout.flush()


def _stay(out: Output, folder: states.StateFolder, supervisor: subprocess.Popen[bytes]) -> int:
    """Until Ctrl-C or SIGTERM; tells meanwhile when a part of the engine was restarted."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    told: dict[str, int] = {}
    while supervisor.poll() is None:
        for name, child in folder.children().items():
            if child.restarts > told.get(name, 0):
                told[name] = child.restarts
                log = folder.logs / f"{name}.log"
                out.warn(
                    f"The {name} ended with code {child.last_exit} and is restarted; see {log}."
                )
        try:
            supervisor.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            continue
    if supervisor.returncode == 0:
        out.hint("stopped by `windlass down`")
        return exits.OK
    raise exits.CliError(
        f"The engine ended with code {supervisor.returncode}.",
        _tail(folder.logs / "supervisor.log"),
    )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _stop(supervisor: subprocess.Popen[bytes]) -> None:
    """Ends what this command started; a second Ctrl-C does not cut it short."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if supervisor.poll() is None:
            supervisor.terminate()
            supervisor.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _complaint(log: Path) -> str:
    """In what words the server refused to start, if it did; it said so each time anew."""
    from windlass.server import main

    lines = _last_lines(log)
    if not lines or not lines[-1].startswith(main.COMPLAINT):
        return ""
    return lines[-1].removeprefix(main.COMPLAINT)


def _tail(log: Path) -> str:
    """The end of a log, for a message."""
    lines = _last_lines(log)
    return "\n".join([f"The end of {log}:", *(f"  {line}" for line in lines)]) if lines else ""


def _last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
