"""`windlass up`: starts the engine of this machine, in the foreground or detached.

The supervisor is a process of its own (`cli.engine.supervisor`); this one shows its progress, waits
until a node is ready, prints the next steps, and either exits or stays until Ctrl-C.
"""

from __future__ import annotations

import asyncio
import dataclasses
import importlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.engine import other_engines
from windlass.cli.lib import base, exit_codes, server_target
from windlass.cli.lib import state_dir as states
from windlass.cli.lib.output import Output, PipeClosed, flush
from windlass.kinds.annotations import HELD

if TYPE_CHECKING:
    from windlass.kinds.types import core

CONTEXT = "windlass"
_POLL = 0.05
_TEAMS = {
    "user": "isolated: jobs of each namespace run under a user id of their own",
    "process": "isolated by the API only: all jobs run as this user, on the same files",
}
_LOG_LINES = 15
_ORPHAN_SECONDS = 15.0
_REQUIRED_BYTES = 32 << 20
"""Disk space for the store with its reserve for a full disk, certificates and first logs."""


@base.command(
    examples=(
        "windlass up                       # until Ctrl-C",
        "windlass up --detach",
        "windlass up -d --state /data/windlass --listen 127.0.0.1:7443",
        "windlass up --dry-run             # would an upgrade of the data succeed?",
        "windlass up --fake-nodes 16 --gpus 8 --racks 4   # try gangs and quotas on a laptop",
    )
)
@click.option(
    "-d", "--detach", is_flag=True, help="Return when it is ready; `windlass down` stops it."
)
@click.option("--listen", default="", metavar="HOST:PORT", help="Address of the API server.")
@click.option(
    "--isolation",
    type=click.Choice(("auto", "user", "process")),
    default="auto",
    help="Run each namespace's jobs under a user id of their own. [default: if root]",
)
@click.option(
    "--host-mounts",
    multiple=True,
    type=click.Path(exists=True, file_okay=False, resolve_path=True),
    metavar="DIR",
    help="A folder of this machine that jobs of teams may mount with host:. May be repeated.",
)
@click.option(
    "--job-limit",
    "job_limits",
    multiple=True,
    metavar="NAME=VALUE",
    help="Limit of each job: processes=8192, files=65536, disk=100Gi. May be repeated.",
)
@click.option(
    "--fake-nodes",
    type=click.IntRange(0, 4096),
    default=0,
    help="Number of simulated nodes, whose pods run nothing.",
)
@click.option("--gpus", type=click.IntRange(0, 64), default=0, help="GPUs of each fake node.")
@click.option("--racks", type=click.IntRange(1, 256), default=1, help="Racks of the fake nodes.")
@click.option(
    "--timeout", default=60.0, show_default=True, help="Seconds to wait until it is ready."
)
@click.option(
    "--kubectl-context/--no-kubectl-context",
    "write_context",
    default=False,
    help="Add the context `windlass` to the file of kubectl. [default: no]",
)
@click.option(
    "--dry-run",
    is_flag=True,
    help="Migrate copies of the store and the ledger to this version; start and change nothing.",
)
@base.state_option
def up(
    out: Output,
    detach: bool,
    listen: str,
    isolation: str,
    host_mounts: tuple[str, ...],
    job_limits: tuple[str, ...],
    fake_nodes: int,
    gpus: int,
    racks: int,
    timeout: float,
    write_context: bool,
    dry_run: bool,
    state: str,
) -> int:
    """Start the engine on this machine: API server, scheduler and node agent.

    Jobs keep running when the engine stops or restarts; it finds them again.
    """
    folder = states.folder(state)
    if dry_run:
        return _try_migrations(out, folder)
    extra = ["--isolation", isolation]
    extra += [word for each in host_mounts for word in ("--host-mounts", each)]
    extra += _job_limits(job_limits)
    if fake_nodes:
        extra += ["--fake", str(fake_nodes), str(gpus), str(racks)]
    elif gpus or racks != 1:
        raise exit_codes.CliError(
            "--gpus and --racks need --fake-nodes.", "Add --fake-nodes N.", exit_codes.USAGE
        )
    if folder.supervisor() is None and folder.server() is not None:
        with out.progress("Waiting for the server of an earlier engine to end"):
            _wait_for_orphan(folder)
    _refuse_second(folder)
    _refuse_taken(listen)
    _refuse_full(folder)
    supervisor = _start(folder, listen, detach, extra)
    try:
        started = time.monotonic()
        with out.progress("Starting the API server"):
            _wait_for_server(folder, supervisor, started + timeout)
        with out.progress("Starting the node agent"):
            wanted = 1 + fake_nodes
            ready = asyncio.run(_wait_for_nodes(folder, supervisor, started + timeout, wanted))
        seconds = time.monotonic() - started
        context = _write_context(out, folder, write_context)
        _announce(out, folder, ready, context, seconds, detach)
        return exit_codes.OK if detach else _stay(out, folder, supervisor)
    except BaseException as problem:
        if detach and isinstance(problem, PipeClosed):
            raise  # `up --detach | head -1`: the engine is up, and the reader closed the pipe
        _stop(supervisor)
        if isinstance(problem, KeyboardInterrupt):
            out.hint("stopped")
            return exit_codes.INTERRUPTED
        raise


def _try_migrations(out: Output, folder: states.StateFolder) -> int:
    """What an upgrade to this version does with the data of an engine, tried on copies of it."""
    if not folder.database.exists():
        out.say(f"There is no store in {folder.path}: nothing to migrate.")
        out.result([], names=[])
        return exit_codes.OK
    module: Any = importlib.import_module("windlass.server.migration_check")
    with out.progress("Migrating copies of the store and the ledger"):
        outcomes = module.check(folder.path)
    for each in outcomes:
        change = f"version {each.before} -> {each.after}, the copy was migrated"
        if each.before == each.after:
            change = f"version {each.before}, nothing to migrate"
        out.say(f"{each.name:8}{each.problem or change}")
    failed = any(each.problem for each in outcomes)
    if not failed:
        out.hint("Nothing was started or changed. Save the data first: windlass backup FILE")
    out.result([dataclasses.asdict(each) for each in outcomes], names=[])
    return exit_codes.FAILED if failed else exit_codes.OK


def _wait_for_orphan(folder: states.StateFolder) -> None:
    """Waits for the server of a killed supervisor to exit, which takes a moment."""
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
    raise exit_codes.CliError(
        f"An engine is already running{address} (pid {pid}, state in {folder.path}).",
        "See it with `windlass status`, stop it with `windlass down`.",
        exit_codes.ALREADY_RUNNING,
    )


def _job_limits(words: Sequence[str]) -> list[str]:
    """The arguments of the supervisor, after the words are checked."""
    from windlass.agent.runtime import job_limits

    try:
        job_limits.parse(words)
    except job_limits.Malformed as problem:
        raise exit_codes.CliError(
            f"--job-limit {problem}.", "For example: --job-limit disk=100Gi", exit_codes.USAGE
        ) from None
    return [argument for word in words for argument in ("--job-limit", word)]


def _refuse_taken(listen: str) -> None:
    """Checks the address before anything is created. The server reports an invalid address, or one
    that is taken later."""
    host, _, port = listen.rpartition(":")
    if not (host and port.isdigit()):
        return
    try:
        socket.create_server((host.strip("[]"), int(port)), family=_family(host)).close()
    except (OSError, OverflowError) as problem:
        why = (isinstance(problem, OSError) and problem.strerror) or str(problem)
        raise exit_codes.CliError(
            f"Cannot listen on {listen}: {why}.", "Choose another address with --listen HOST:PORT."
        ) from None


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def _refuse_full(folder: states.StateFolder) -> None:
    """Checks the disk space for a new engine. An existing engine may start without, so that its
    objects can be deleted."""
    if folder.path.exists():
        return
    there = next(each for each in folder.path.absolute().parents if each.exists())
    free = shutil.disk_usage(there).free
    if free < _REQUIRED_BYTES:
        raise exit_codes.CliError(
            f"The disk of {there} is full: {free >> 20} MiB are free, {_REQUIRED_BYTES >> 20} MiB "
            "are needed.",
            "Free some space there, or choose another place with --state DIR.",
        )


def _start(
    folder: states.StateFolder, listen: str, detach: bool, extra: list[str]
) -> subprocess.Popen[bytes]:
    try:
        # It contains tokens and logs of jobs: only its owner may read it, from its creation on.
        folder.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.logs.mkdir(mode=0o700, exist_ok=True)
    except OSError as problem:
        raise exit_codes.CliError(
            f"The state folder {folder.path} cannot be created: {problem.strerror}.",
            "Choose another one with --state DIR.",
        ) from None
    argv = [sys.executable, "-m", "windlass.cli.engine.supervisor", "--state", str(folder.path)]
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
    """The ready nodes, once there are enough, each with the limits that its agent enforces."""
    from windlass.kinds.types import core
    from windlass.store import connect, errors

    store = connect.open_store(str(folder.kubeconfig))
    try:
        while True:
            try:
                found = (await store.list(core.Node)).items
            except errors.Unavailable:
                found = []
            ready = [node for node in found if node.is_ready]
            if len(ready) >= wanted:
                return {node.name: _held(node) for node in ready}
            _check_alive(folder, supervisor, "agent", deadline)
            await asyncio.sleep(_POLL)
    finally:
        await store.close()


def _held(node: core.Node) -> dict[str, str]:
    """The limits that the agent of the node enforces; empty for a simulated node."""
    if (node.metadata.labels or {}).get("windlass.dev/fake"):
        return {}
    enforced = (node.metadata.annotations or {}).get(HELD, "{}")
    return {str(key): str(value) for key, value in json.loads(enforced).items()}


def _check_alive(
    folder: states.StateFolder, supervisor: subprocess.Popen[bytes], child: str, deadline: float
) -> None:
    """Raises if the engine cannot become ready any more."""
    ended = supervisor.poll()
    if ended == exit_codes.ALREADY_RUNNING:
        _refuse_second(folder)
        raise exit_codes.CliError(
            f"Another `windlass up` is starting on {folder.path}.",
            "See it with `windlass status`.",
            exit_codes.ALREADY_RUNNING,
        )
    log = folder.logs / f"{child if ended is None else 'supervisor'}.log"
    facts = folder.children().get(child)
    if ended is not None:
        raise exit_codes.CliError(f"The engine exited with code {ended}.", _tail(log))
    if facts is not None and facts.restarts >= 3:
        if complaint := _complaint(log):
            message, _, remedy = complaint.partition("; ")
            raise exit_codes.CliError(exit_codes.sentence(message), exit_codes.sentence(remedy))
        raise exit_codes.CliError(
            f"The {child} does not start: it exited {facts.restarts} times, "
            f"last with code {facts.last_exit}.",
            _tail(log),
        )
    if time.monotonic() > deadline:
        raise exit_codes.CliError(
            f"The {child} was not ready in time.",
            f"Use a longer --timeout.\n{_tail(log)}",
            exit_codes.TIMED_OUT,
        )


def _write_context(
    out: Output, folder: states.StateFolder, wanted: bool
) -> tuple[Path, str] | None:
    """Adds the context `windlass` to kubectl's config, on request: otherwise the engine has only a
    file of its own."""
    if not wanted:
        return None
    from windlass.store import errors
    from windlass.store.kubernetes.config import kubeconfig

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

    from windlass.store.kubernetes.config import kubeconfig

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
    option = server_target.option_for(folder)
    out.say(f"Windlass is up at {url} (ready in {seconds:.1f} s).")
    real = [name for name, enforced in ready.items() if enforced]
    more = f" and {len(ready) - len(real)} simulated" if len(ready) > len(real) else ""
    out.say(f"  node     {', '.join(real)}{more}")
    for enforced in (ready[name] for name in real):
        out.say(f"  limits   {enforced.get('limits', '')}")
        out.say(f"  teams    {_TEAMS[enforced.get('isolation', 'process')]}")
    out.say(f"  state    {folder.path} (logs in {folder.logs})")
    out.say(f"  kubectl  kubectl {flag} get runs")
    if context:
        out.say(f"           (context {CONTEXT} written to {context[0]})")
    if option and (other := server_target.used_by_default()):
        out.say(f"  target   commands use {other}, not this engine")
        out.say(f"           for this engine: export WINDLASS_STATE={folder.path}")
    else:
        out.say("  target   commands in this shell use this engine")
    if others := other_engines.states(folder.path):
        out.warn(other_engines.warning(others))
    out.hint(f"Try: windlass run{option} -- echo hello")
    down = "" if folder.is_default else f" --state {folder.path}"
    out.hint(f"Stop: windlass down{down}" if detach else "Stop: Ctrl-C")
    data = {
        "url": url,
        "pid": server.pid if server else 0,
        "state": str(folder.path),
        "kubeconfig": str(folder.kubeconfig),
        "context": context[1] if context else None,
        "nodes": list(ready),
        "otherEngines": [str(each) for each in others],
        "held": {name: enforced for name, enforced in ready.items() if enforced},
    }
    out.result(data, names=[url])
    flush()


def _stay(out: Output, folder: states.StateFolder, supervisor: subprocess.Popen[bytes]) -> int:
    """Waits until Ctrl-C or SIGTERM, and reports restarts of the engine's processes."""
    signal.signal(signal.SIGTERM, _interrupt)
    signal.signal(signal.SIGHUP, _interrupt)
    reported: dict[str, int] = {}
    while supervisor.poll() is None:
        for name, child in folder.children().items():
            if child.restarts > reported.get(name, 0):
                reported[name] = child.restarts
                log = folder.logs / f"{name}.log"
                out.warn(
                    f"The {name} exited with code {child.last_exit} and is restarting; see {log}."
                )
        try:
            supervisor.wait(timeout=1.0)
        except subprocess.TimeoutExpired:
            continue
    if supervisor.returncode == 0:
        out.hint("stopped by `windlass down`")
        return exit_codes.OK
    raise exit_codes.CliError(
        f"The engine exited with code {supervisor.returncode}.",
        _tail(folder.logs / "supervisor.log"),
    )


def _interrupt(_number: int, _frame: object) -> None:
    raise KeyboardInterrupt


def _stop(supervisor: subprocess.Popen[bytes]) -> None:
    """Stops the processes of this command; a second Ctrl-C does not interrupt it."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        if supervisor.poll() is None:
            supervisor.terminate()
            supervisor.wait()
    finally:
        signal.signal(signal.SIGINT, before)


def _complaint(log: Path) -> str:
    """The message with which the server refused to start, if it did; the last of all attempts."""
    from windlass.server import main

    lines = _last_lines(log)
    if not lines or not lines[-1].startswith(main.COMPLAINT):
        return ""
    return lines[-1].removeprefix(main.COMPLAINT)


def _tail(log: Path) -> str:
    """The last lines of a log, for an error message."""
    lines = _last_lines(log)
    return "\n".join([f"Last lines of {log}:", *(f"  {line}" for line in lines)]) if lines else ""


def _last_lines(log: Path) -> list[str]:
    try:
        return log.read_text(errors="replace").splitlines()[-_LOG_LINES:]
    except OSError:
        return []
