"""`windlass install`, `upgrade` and `uninstall`: Windlass on a Kubernetes cluster.

What is installed and how is `windlass.install`; here are flags, words and exit codes.
"""

from __future__ import annotations

import asyncio
import collections
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from windlass.cli import base, client, exits
from windlass.cli.output import Output
from windlass.kinds import duration, times

Function = TypeVar("Function", bound=Callable[..., Any])

_WAIT = "5m"


def _choices(function: Function) -> Function:
    """What may be chosen when installing; what is not named stays as it was."""
    for names, text in (
        (("--image",), "Image of Windlass' own parts, and of runs that name none."),
        (("--pull-secret",), "Secret to pull it with, in windlass-system and windlass-nodes."),
        (("--storage-class",), "Storage class of the server's volume. [default: the cluster's]"),
        (("--storage-size",), "Size of the server's volume. [default: 20Gi]"),
        (("--server-address",), "https:// address of the server for pods. [default: its Service]"),
        (("--api-address",), "HOST:PORT of the API server for our pods. [default: its Service]"),
        (("--environments",), "claim:NAME that keeps built environments. [default: none are kept]"),
        (("--ledger",), "secret:NAME/KEY with a PostgreSQL address. [default: a file]"),
        (("--storage",), "s3://BUCKET/PREFIX?endpoint=URL for code and logs. [default: a volume]"),
        (("--storage-secret",), "Secret in windlass-system with its access-key and secret-key."),
        (("--replicas",), "Servers, with --ledger and --storage. [default: 1]"),
    ):
        function = click.option(*names, default="", help=text)(function)
    waits = click.option("--wait/--no-wait", default=True, help="Wait until all parts work.")
    limit = click.option("--timeout", default=_WAIT, show_default=True, help="How long to wait.")
    return waits(limit(function))


@base.command(
    examples=(
        "windlass install",
        "windlass install --context staging --storage-class fast --storage-size 100Gi",
        "windlass install --dry-run -o yaml > windlass.yaml",
        "windlass install --replicas 2 --ledger secret:books/url --storage-secret s3 "
        "--storage 's3://windlass?endpoint=https://minio.example:9000'",
    )
)
@_choices
@click.option("--dry-run", is_flag=True, help="Print what would be installed; ask no cluster.")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True,
    help="Of --dry-run.",
)  # fmt: skip
@base.target_options
def install(
    out: Output,
    target: base.Target,
    wait: bool,
    timeout: str,
    dry_run: bool,
    output: str,
    **given: str,
) -> int:
    """Install Windlass on the cluster of your kubeconfig, or bring what is there to this version.

    Repeating it changes nothing. It needs the rights of a cluster administrator; what it installs
    has only those that each part needs (docs/kubernetes.md).
    """
    if dry_run:
        _print(out, output, _options({}, given))
        return exits.OK
    limit = _seconds(timeout) if wait else 0.0
    return _step_by_step(target, lambda session: _install(out, session, limit, given))


@base.command(
    examples=("windlass upgrade", "windlass upgrade --image registry.example/windlass:0.2.0"),
)
@_choices
@click.option(
    "--rotate-authority", is_flag=True, help="Make a new certificate authority for the server."
)
@base.target_options
def upgrade(
    out: Output,
    target: base.Target,
    wait: bool,
    timeout: str,
    rotate_authority: bool,
    **given: str,
) -> int:
    """Bring an installation to this version: options stay, certificates are renewed in time, and
    what this version no longer needs goes. Runs go on meanwhile."""
    limit = _seconds(timeout) if wait else 0.0

    async def work(session: client.Session) -> int:
        if await _room().applying.known_options(session.store) is None:
            raise exits.CliError(
                "Windlass is not installed on this cluster.",
                "Install it: windlass install",
                exits.NOT_FOUND,
            )
        return await _install(out, session, limit, given, rotate=rotate_authority, prune=True)

    return _step_by_step(target, work)


@base.command(
    examples=("windlass uninstall", "windlass uninstall --delete-data --yes"),
)
@click.option("--delete-data", is_flag=True, help="Delete runs, queues, code and kept logs, too.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@base.target_options
def uninstall(out: Output, target: base.Target, delete_data: bool, yes: bool) -> int:
    """Take Windlass' own parts out of a cluster. Runs, queues, uploaded code and kept logs stay,
    and are there again after the next install, unless --delete-data says otherwise. Pods of runs
    that are under way go on; nobody looks after them."""
    if not yes:
        what = "Windlass with all runs, queues and logs" if delete_data else "Windlass"
        out.confirm(f"Remove {what} from the cluster?", "--yes")
    return _step_by_step(target, lambda session: _uninstall(out, session, delete_data))


# --- the steps ------------------------------------------------------------------------------------


def _step_by_step(
    target: base.Target, work: Callable[[client.Session], Coroutine[Any, Any, int]]
) -> int:
    """Each step may be repeated, so Ctrl-C leaves nothing that the same command does not finish."""
    try:
        return client.call(target, work)
    except KeyboardInterrupt:
        raise exits.CliError(
            "Interrupted: what was done so far stays, the rest is not done.",
            "Repeat the command: it goes on where it stopped.",
            exits.INTERRUPTED,
        ) from None


async def _install(
    out: Output,
    session: client.Session,
    limit: float,
    given: dict[str, str],
    *,
    rotate: bool = False,
    prune: bool = False,
) -> int:
    room, store = _room(), session.store
    await _check_version(session)
    before = await room.applying.known_options(store) or {}
    options = _options(before, given)
    _refuse_another_volume(before, options)
    service = options.server_names(room.names.SERVER, room.names.SYSTEM)
    known = await room.applying.known_certificates(store)
    made = room.certificates.ensure(known, service, times.now(), rotate=rotate)
    parts = room.render.parts(options, made)
    told: list[dict[str, Any]] = []
    for part in parts:
        counts: collections.Counter[str] = collections.Counter()
        with out.progress(f"{part.name}: applying {len(part.objects)} objects"):
            async for _, outcome in room.applying.apply(store, part):
                counts[outcome] += 1
        told.append({"part": part.name, **counts})
        out.say(f"{part.name:14}{_counted(counts)}")
        if part.name == "kinds":
            await _wait(out, session, [part], max(limit, 60.0))
    if prune:
        gone = await room.applying.left_over(store, parts)
        async for obj, _ in room.applying.delete(store, gone):
            out.say(f"{'removed':14}{room.applying.title(obj)}")
        told.append({"part": "left over", "deleted": len(gone)})
    if limit:
        await _wait(out, session, parts, limit)
        out.say("All parts work.")
    out.hint("Try it: windlass run -- echo hello")
    out.result({"image": options.image, "parts": told}, names=[part.name for part in parts])
    return exits.OK


async def _wait(out: Output, session: client.Session, parts: list[Any], limit: float) -> None:
    room = _room()
    deadline = asyncio.get_running_loop().time() + limit
    for part in parts:
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        missing = await room.waiting.until_ready(
            session.store, part, left, lambda text: out.hint(f"  waiting for {text}")
        )
        if missing:
            raise exits.CliError(
                f"Not all parts work after {limit:g} s: {missing}.",
                "Look with `kubectl get pods,events -n windlass-system`, then repeat the command: "
                "it goes on where it stopped.",
                exits.TIMED_OUT,
            )


async def _uninstall(out: Output, session: client.Session, delete_data: bool) -> int:
    room, store = _room(), session.store
    known = await room.applying.known_options(store)
    options = _options(known or {}, {})
    parts = room.render.parts(options, room.render.UNMADE)
    ours, data = room.render.for_removal(parts)
    counts: collections.Counter[str] = collections.Counter()
    with out.progress("Removing Windlass' own parts"):
        async for _, outcome in room.applying.delete(store, ours):
            counts[outcome] += 1
    out.say(f"{'parts':14}{_counted(counts)}")
    if delete_data:
        counts = collections.Counter()
        await room.applying.release_runs(store)
        with out.progress("Removing runs, queues, code and logs"):
            async for _, outcome in room.applying.delete(store, data):
                counts[outcome] += 1
        out.say(f"{'data':14}{_counted(counts)}")
    else:
        out.hint("Runs, queues, code and kept logs stay; remove them with --delete-data.")
    out.result({"deleted": counts["deleted"], "data": delete_data})
    return exits.OK


async def _check_version(session: client.Session) -> None:
    found = await session.read("/version")
    text = str(found.get("gitVersion", ""))
    if "windlass" in text:
        raise exits.CliError(
            "This is the embedded engine of one machine, not a cluster.",
            "Choose a cluster with --kubeconfig or --context.",
        )
    checkup = _room().checkup
    if checkup.version_of(found) < checkup.OLDEST:
        oldest = ".".join(map(str, checkup.OLDEST))
        raise exits.CliError(
            f"The cluster is Kubernetes {text}; Windlass needs {oldest} or newer.",
            "Upgrade the cluster first.",
        )


def _refuse_another_volume(before: dict[str, str], options: Any) -> None:
    if before and before.get("storage", "") != options.storage:
        raise exits.CliError(
            "Code and kept logs are somewhere else already: "
            f"{before.get('storage') or 'on the volume of the server'}.",
            "They are not moved. To begin anew elsewhere: windlass uninstall, then install again.",
            exits.CONFLICT,
        )
    for key in ("storage_class", "storage_size"):
        if key in before and before[key] != getattr(options, key):
            flag = f"--{key.replace('_', '-')}"
            raise exits.CliError(
                f"The server's volume is there already, with {flag} {before[key] or '(default)'}.",
                "To grow it, edit the PersistentVolumeClaim state-windlass-server-0 in "
                "windlass-system; to move it, back it up, uninstall and install again.",
                exits.CONFLICT,
            )


def _options(known: dict[str, str], given: dict[str, str]) -> Any:
    room = _room()
    try:
        return room.options.Options.read(known, **given)
    except room.options.OptionsError as problem:
        raise exits.CliError(exits.sentence(str(problem)), "", exits.USAGE) from None


def _print(out: Output, form: str, options: Any) -> None:
    import json

    room = _room()
    service = options.server_names(room.names.SERVER, room.names.SYSTEM)
    made = room.certificates.ensure(None, service, times.now())
    objects = [obj for part in room.render.parts(options, made) for obj in part.objects]
    if form == "json" or not out.human:
        out.raw(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2) + "\n")
        return
    out.raw(room.render.as_yaml(objects))


def _counted(counts: collections.Counter[str]) -> str:
    order = ("created", "changed", "unchanged", "deleted", "absent")
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word])


def _seconds(text: str) -> float:
    try:
        return float(duration.seconds(text))
    except ValueError as problem:
        raise exits.CliError(f"--timeout: {problem}.", "Such as 5m.", exits.USAGE) from None


class _Room:
    """The modules of windlass.install, loaded when a command needs them."""

    def __getattr__(self, name: str) -> Any:
        return importlib.import_module(f"windlass.install.{name}")


def _room() -> Any:
    return _Room()
