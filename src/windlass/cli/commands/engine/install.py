"""`windlass install`, `upgrade` and `uninstall`: Windlass on a Kubernetes cluster.

`windlass.install` knows what is installed and how; this module has flags, output and exit codes.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import importlib
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import click

from windlass.cli.lib import base, client_session, exit_codes
from windlass.cli.lib.output import Output
from windlass.kinds.values import duration, times

Function = TypeVar("Function", bound=Callable[..., Any])

_WAIT = "5m"
_IMAGE_SECONDS = 180.0
"""To pull the image onto one node."""


def choices(function: Function) -> Function:
    """Options of an installation; those that are not given stay unchanged."""
    for names, text in (
        (("--image",), "Image of Windlass, and of runs without an image."),
        (("--pull-secret",), "Image pull secret, in windlass-system and windlass-nodes."),
        (("--storage-class",), "Storage class of the server's volume. [default: the cluster's]"),
        (("--storage-size",), "Size of the server's volume. [default: 20Gi]"),
        (("--server-address",), "https:// address of the server for pods. [default: its Service]"),
        (
            ("--api-address",),
            "HOST:PORT of the API server for Windlass' pods. [default: its Service]",
        ),
        (
            ("--environments",),
            "claim:NAME of a volume that caches environments. [default: no cache]",
        ),
        (
            ("--host-mounts",),
            "DIR[,DIR...] of nodes that members' runs may mount. [default: none]",
        ),
        (("--ledger",), "secret:NAME/KEY with a PostgreSQL address. [default: a file]"),
        (("--storage",), "s3://BUCKET/PREFIX?endpoint=URL for code and logs. [default: a volume]"),
        (
            ("--storage-secret",),
            "Secret in windlass-system with access-key and secret-key of --storage.",
        ),
        (
            ("--monitoring",),
            "NAMESPACE/SERVICEACCOUNT of Prometheus: scraping, alerts, dashboards; or none.",
        ),
        (("--replicas",), "Server replicas; more than 1 need --ledger and --storage. [default: 1]"),
    ):
        function = click.option(*names, default="", help=text)(function)
    return function


def _waiting(function: Function) -> Function:
    waits = click.option(
        "--wait/--no-wait", default=True, help="Wait until all components are ready."
    )
    limit = click.option(
        "--timeout", default=_WAIT, show_default=True, help="Maximum time to wait."
    )
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
@choices
@_waiting
@click.option("--dry-run", is_flag=True, help="Print the objects; contact no cluster.")
@click.option(
    "-o", "--output", type=click.Choice(["yaml", "json"]), default="yaml", show_default=True,
    help="Format of --dry-run.",
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
    """Install Windlass on the cluster of your kubeconfig, or upgrade an installation.

    Repeating it changes nothing. You need the permissions of a cluster administrator; each
    installed component gets only those that it needs (docs/guide/kubernetes.md).
    """
    if dry_run:
        _print(out, output, options_of({}, given))
        return exit_codes.OK
    limit = _seconds(timeout) if wait else 0.0
    return _step_by_step(target, lambda session: _install(out, session, limit, _Plan(given)))


@base.command(
    examples=(
        "windlass upgrade --dry-run",
        "windlass upgrade",
        "windlass upgrade --image registry.example/windlass:0.2.0",
    ),
)
@choices
@_waiting
@click.option(
    "--rotate-authority", is_flag=True, help="Create a new certificate authority for the server."
)
@click.option(
    "--rollback", is_flag=True, help="Return to the options before the latest change, alone."
)
@click.option(
    "--dry-run", is_flag=True, help="Check, and name the objects that would change; change nothing."
)
@base.target_options
def upgrade(
    out: Output,
    target: base.Target,
    wait: bool,
    timeout: str,
    rotate_authority: bool,
    rollback: bool,
    dry_run: bool,
    **given: str,
) -> int:
    """Upgrade an installation to this version: options stay, expiring certificates are renewed,
    and objects that this version no longer needs are deleted. Runs keep running.

    Before anything changes, the permissions, the storage class and, by a pod on the cluster, the
    image are checked."""
    if rollback and any(given.values()):
        raise exit_codes.CliError(
            "--rollback takes no other option: it restores all of them.", "", exit_codes.USAGE
        )
    limit = _seconds(timeout) if wait else 0.0

    async def work(session: client_session.Session) -> int:
        await _check_permissions(session, "upgrade")
        if await install_modules().apply.known_options(session.store) is None:
            raise exit_codes.CliError(
                "Windlass is not installed on this cluster.",
                "Install it: windlass install",
                exit_codes.NOT_FOUND,
            )
        plan = _Plan(given, rotate=rotate_authority, prune=True, rollback=rollback)
        if dry_run:
            return await _show_changes(out, session, plan)
        return await _install(out, session, limit, plan)

    return _step_by_step(target, work)


@base.command(
    examples=("windlass uninstall", "windlass uninstall --delete-data --yes"),
)
@click.option(
    "--delete-data", is_flag=True, help="Delete runs, queues, uploaded code and logs, too."
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@base.target_options
def uninstall(out: Output, target: base.Target, delete_data: bool, yes: bool) -> int:
    """Remove Windlass' components from a cluster. Runs, queues, uploaded code and logs stay for the
    next install, unless --delete-data is given: members of teams can still read and delete their
    runs with kubectl. Pods of running runs keep running, but no controller manages them."""
    if not yes:
        what = "Windlass with all runs, queues and logs" if delete_data else "Windlass"
        out.confirm(f"Remove {what} from the cluster?", "--yes")
    return _step_by_step(target, lambda session: _uninstall(out, session, delete_data))


# --- the steps ------------------------------------------------------------------------------------


def _step_by_step(
    target: base.Target, work: Callable[[client_session.Session], Coroutine[Any, Any, int]]
) -> int:
    """Each step is idempotent, so repeating the command after Ctrl-C finishes it."""
    try:
        return client_session.call(target, work)
    except KeyboardInterrupt:
        raise exit_codes.CliError(
            "Interrupted; the installation is incomplete.",
            "Repeat the command to finish it.",
            exit_codes.INTERRUPTED,
        ) from None


@dataclasses.dataclass(frozen=True, slots=True)
class _Plan:
    """What the user asked for."""

    given: dict[str, str]
    rotate: bool = False
    prune: bool = False
    rollback: bool = False


async def _install(out: Output, session: client_session.Session, limit: float, plan: _Plan) -> int:
    modules, store = install_modules(), session.store
    await _check_version(session)
    await _check_permissions(session, "upgrade" if plan.prune else "install")
    before = await modules.apply.known_options(store) or {}
    options = _returned(before) if plan.rollback else options_of(before, plan.given, upgrade=True)
    await _check_first(out, session, before, options)
    if before:
        options = options.after(before, worked=await _works(session, before))
    service = options.server_names(modules.names.SERVER, modules.names.SYSTEM)
    known = await modules.apply.known_certificates(store)
    made = modules.certificates.ensure(known, service, times.now(), rotate=plan.rotate)
    parts = modules.render.parts(options, made)
    reports: list[dict[str, Any]] = []
    for part in parts:
        counts: collections.Counter[str] = collections.Counter()
        with out.progress(f"{part.name}: applying {len(part.objects)} objects"):
            async for _, outcome in modules.apply.apply(store, part):
                counts[outcome] += 1
        reports.append({"part": part.name, **counts})
        out.say(f"{part.name:14}{_counted(counts)}")
        if part.name == "kinds":
            await _wait(out, session, [part], max(limit, 60.0))
        if part.name == "namespaces" and limit and before.get("image") != options.image:
            await _check_image(out, session, options, limit)
    if plan.prune:
        gone = await modules.apply.left_over(store, parts)
        async for obj, _ in modules.apply.delete(store, gone):
            out.say(f"{'removed':14}{modules.apply.title(obj)}")
        reports.append({"part": "obsolete", "deleted": len(gone)})
    if limit:
        await _wait(out, session, parts, limit)
        out.say("All components are ready.")
    out.hint("Try it: windlass run -- echo hello")
    out.result({"image": options.image, "parts": reports}, names=[part.name for part in parts])
    return exit_codes.OK


async def _show_changes(out: Output, session: client_session.Session, plan: _Plan) -> int:
    """What an upgrade would do: the API server judges each object, and stores none."""
    modules, store = install_modules(), session.store
    await _check_version(session)
    before = await modules.apply.known_options(store) or {}
    options = _returned(before) if plan.rollback else options_of(before, plan.given, upgrade=True)
    await _check_first(out, session, before, options)
    service = options.server_names(modules.names.SERVER, modules.names.SYSTEM)
    known = await modules.apply.known_certificates(store)
    made = modules.certificates.ensure(known, service, times.now(), rotate=plan.rotate)
    parts = modules.render.parts(options, made)
    with out.progress("Comparing all objects with those of the cluster"):
        found = await modules.drift.find(store, parts)
        gone = await modules.apply.left_over(store, parts)
    changes = {
        "create": found.missing,
        "change": found.changed,
        "remove": tuple(modules.apply.title(obj) for obj in gone),
    }
    for word, titles in changes.items():
        for title in titles:
            out.say(f"{word:8}{title}")
    number = sum(map(len, changes.values()))
    out.say(f"{number} objects would change." if number else "Nothing would change.")
    out.hint("Nothing was changed. The image is tried on the cluster by the upgrade itself.")
    out.result(
        {"image": options.image, **changes}, names=[t for ts in changes.values() for t in ts]
    )
    return exit_codes.OK


async def _wait(
    out: Output, session: client_session.Session, parts: list[Any], limit: float
) -> None:
    modules = install_modules()
    deadline = asyncio.get_running_loop().time() + limit
    for part in parts:
        left = max(0.0, deadline - asyncio.get_running_loop().time())
        missing = await modules.readiness.until_ready(
            session.store, part, left, lambda text: out.hint(f"  waiting for {text}")
        )
        if missing:
            effect = modules.readiness.EFFECTS.get(part.name, "")
            meanwhile = f" Until it is: {effect}." if effect else ""
            raise exit_codes.CliError(
                f"Not all components are ready after {limit:g} s: {missing}.{meanwhile}",
                "See `kubectl get pods,events -n windlass-system`, then repeat the command with "
                "what was wrong corrected, or return: windlass upgrade --rollback",
                exit_codes.TIMED_OUT,
            )


async def _uninstall(out: Output, session: client_session.Session, delete_data: bool) -> int:
    modules, store = install_modules(), session.store
    known = await modules.apply.known_options(store)
    options = options_of(known or {}, {})
    parts = modules.render.parts(options, modules.render.UNMADE)
    ours, data = modules.render.for_removal(parts)
    counts: collections.Counter[str] = collections.Counter()
    with out.progress("Removing the components of Windlass"):
        async for _, outcome in modules.apply.delete(store, ours):
            counts[outcome] += 1
    out.say(f"{'parts':14}{_counted(counts)}")
    # Only now: while the controllers had their rights they put it back.
    released = await modules.apply.release_all_runs(store)
    if delete_data:
        counts = collections.Counter()
        with out.progress("Removing runs, queues, code and logs"):
            async for _, outcome in modules.apply.delete(store, data):
                counts[outcome] += 1
        out.say(f"{'data':14}{_counted(counts)}")
    else:
        out.say(f"{'runs':14}{released} released from the ledger: they can be deleted")
        out.hint(
            "Runs, queues, uploaded code and logs stay, and members keep their rights to them. "
            "Remove all with --delete-data."
        )
    out.result({"deleted": counts["deleted"], "released": released, "data": delete_data})
    return exit_codes.OK


async def _check_version(session: client_session.Session) -> None:
    found = await session.read("/version")
    text = str(found.get("gitVersion", ""))
    if "windlass" in text:
        raise exit_codes.CliError(
            "The target is the embedded engine of one machine, not a cluster.",
            _cluster_here() or "Choose a cluster with --kubeconfig or --context.",
        )
    preflight = install_modules().preflight
    if preflight.version_of(found) < preflight.OLDEST:
        oldest = ".".join(map(str, preflight.OLDEST))
        raise exit_codes.CliError(
            f"The cluster is Kubernetes {text}; Windlass needs {oldest} or newer.",
            "Upgrade the cluster first.",
        )


def _cluster_here() -> str:
    """How to choose the cluster of this machine; "" if there is none."""
    from windlass.store import connect

    for installer, path in connect.administrator_files():
        return f"{installer} runs on this machine; to choose it: --kubeconfig {path}"
    return ""


async def _check_permissions(session: client_session.Session, word: str) -> None:
    found = await install_modules().preflight.permissions(session.store, word)
    if found.state != "ok":
        raise exit_codes.CliError(
            f"Nothing was changed: {found.found}.", found.remedy, exit_codes.FORBIDDEN
        )


async def _check_first(
    out: Output, session: client_session.Session, before: dict[str, str], options: Any
) -> None:
    """Refuses what cannot work, before anything is created or changed."""
    preflight, store = install_modules().preflight, session.store
    found = await preflight.storage(store, options)
    if found.state == "missing":
        raise exit_codes.CliError(
            f"Nothing was changed: {found.found}. {found.meaning}", found.remedy, exit_codes.FAILED
        )
    if before and await _has_unbound_claim(session) and _changes_volume(before, options):
        out.hint("The volume of the server was never bound: it is replaced by one as given.")
        await install_modules().apply.forget_volume(store)
    else:
        _refuse_another_volume(before, options)


async def _check_image(
    out: Output, session: client_session.Session, options: Any, limit: float
) -> None:
    check = install_modules().image_check
    with out.progress(f"{'image':14}trying {options.image} on a node"):
        problem = await check.problem(session.store, options, min(limit, _IMAGE_SECONDS))
    if problem:
        raise exit_codes.CliError(
            f"The image {options.image} cannot be used: {problem}. No component was changed.",
            "Give one that the nodes can pull: --image, and --pull-secret for a private registry.",
            exit_codes.FAILED,
        )
    if problem is None:
        out.hint(f"No node tried the image within {min(limit, _IMAGE_SECONDS):g} s; continuing.")


async def _works(session: client_session.Session, before: dict[str, str]) -> bool:
    """Whether the components work now, with the options that are installed."""
    modules = install_modules()
    installed = modules.render.parts(modules.options.Options.read(before), modules.render.UNMADE)
    kinds = ("Deployment", "StatefulSet", "DaemonSet")
    watched = [
        dataclasses.replace(part, objects=[obj for obj in part.objects if obj["kind"] in kinds])
        for part in installed
    ]
    missing = [await modules.readiness.missing_of(session.store, part) for part in watched]
    return not any(missing)


def _returned(before: dict[str, str]) -> Any:
    options = install_modules().options
    try:
        return options.Options.of_before(before)
    except options.OptionsError as problem:
        raise exit_codes.CliError(
            exit_codes.sentence(str(problem)), "", exit_codes.CONFLICT
        ) from None


async def _has_unbound_claim(session: client_session.Session) -> bool:
    modules = install_modules()
    found = await modules.apply.read(session.store, modules.names.CLAIM_PATH)
    return found is not None and found.get("status", {}).get("phase") != "Bound"


_VOLUME = ("storage_class", "storage_size")


def _changes_volume(before: dict[str, str], options: Any) -> bool:
    return any(before.get(key, "") != getattr(options, key) for key in _VOLUME)


def _refuse_another_volume(before: dict[str, str], options: Any) -> None:
    if before and before.get("storage", "") != options.storage:
        raise exit_codes.CliError(
            "Uploaded code and logs are already stored elsewhere: "
            f"{before.get('storage') or 'on the volume of the server'}.",
            "Windlass does not move them. To start anew: windlass uninstall, then install again.",
            exit_codes.CONFLICT,
        )
    for key in _VOLUME:
        if key in before and before[key] != getattr(options, key):
            flag = f"--{key.replace('_', '-')}"
            raise exit_codes.CliError(
                f"The server's volume exists already, with {flag} {before[key] or '(default)'}.",
                "To grow it, edit the PersistentVolumeClaim state-windlass-server-0 in "
                "windlass-system; to move it, back it up, uninstall and install again.",
                exit_codes.CONFLICT,
            )


def options_of(known: dict[str, str], given: dict[str, str], *, upgrade: bool = False) -> Any:
    modules = install_modules()
    try:
        if upgrade:
            modules.options.Options.check_upgrade(known, **given)
        return modules.options.Options.read(known, **given)
    except modules.options.OptionsError as problem:
        raise exit_codes.CliError(exit_codes.sentence(str(problem)), "", exit_codes.USAGE) from None


def _print(out: Output, form: str, options: Any) -> None:
    import json

    modules = install_modules()
    service = options.server_names(modules.names.SERVER, modules.names.SYSTEM)
    made = modules.certificates.ensure(None, service, times.now())
    objects = [obj for part in modules.render.parts(options, made) for obj in part.objects]
    if form == "json" or not out.human:
        out.raw(json.dumps({"apiVersion": "v1", "kind": "List", "items": objects}, indent=2) + "\n")
        return
    out.raw(modules.render.as_yaml(objects))


def _counted(counts: collections.Counter[str]) -> str:
    order = ("created", "changed", "unchanged", "deleted", "absent")
    return ", ".join(f"{counts[word]} {word}" for word in order if counts[word])


def _seconds(text: str) -> float:
    try:
        return float(duration.seconds(text))
    except ValueError as problem:
        raise exit_codes.CliError(
            f"--timeout: {problem}.", "Write for example 5m.", exit_codes.USAGE
        ) from None


class _InstallModules:
    """The modules of windlass.install, imported only by the commands that need them."""

    def __getattr__(self, name: str) -> Any:
        place = {"render": "manifests.render"}.get(name, name)
        return importlib.import_module(f"windlass.install.{place}")


def install_modules() -> Any:
    return _InstallModules()
