"""`windlass outputs`: files that were collected from the replicas of runs."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names
from windlass.cli.lib.output import Output
from windlass.kinds.annotations import OUTPUTS_QUOTA, PINNED
from windlass.kinds.types import core
from windlass.kinds.types import run as kind


class _Group(base.Group):
    """`windlass outputs RUN` lists: a word that names no subcommand is a run."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands and not args[0].startswith("--"):
            args = ["list", *args]
        return super().resolve_command(ctx, args)


@click.group(
    cls=_Group,
    context_settings={"help_option_names": ["-h", "--help"], "ignore_unknown_options": True},
)
def outputs() -> None:
    """List, download and keep the outputs of runs: files that --output collects.

    `windlass outputs RUN` lists those of RUN.
    """


_name = click.argument("name", metavar="RUN", shell_complete=kind_names.complete_names)


@outputs.command(
    "list", cls=base.Command, examples=("windlass outputs train", "windlass outputs list train")
)
@_name
@base.target_options
@click.pass_obj
def list_(out: Output, name: str, target: base.Target) -> None:
    """List the outputs of RUN, by replica, with their sizes."""
    from windlass.kinds.values import times
    from windlass.sdk.files import collected, copying, places

    async def work(
        session: client_session.Session,
    ) -> tuple[kind.Run, list[collected.OutputFile]]:
        owner = await session.store.get(kind.Run, name.removeprefix("run/"), session.namespace)
        return owner, await collected.files_of(session.store, owner)

    owner, found = client_session.call(target, work)
    rows = [
        (
            places.shown(each.path),
            f"-> {places.shown(each.target)}" if each.target else copying.human(each.size),
            each.replica,
            times.seconds(times.from_unix(each.modified)),
        )
        for each in found
    ]
    if found:
        out.table(("PATH", "SIZE", "REPLICA", "MODIFIED"), rows, numbers=("SIZE",))
        out.hint(f"Download them: windlass outputs download {owner.name} .{target.flags}")
    else:
        out.say(f"run/{owner.name} has no outputs.")
        if not owner.spec.outputs:
            out.hint("Declare them when you submit: windlass run --output PATH")
    for replica, each in sorted((owner.status.outputs or {}).items()):
        if each.message:
            out.warn(f"{replica}: {places.shown(each.message, 500)}")
    data = [
        {"replica": each.replica, "path": places.shown(each.path), "size": each.size,
         "digest": each.digest, "target": places.shown(each.target)}
        for each in found
    ]  # fmt: skip
    result = {"run": owner.name, "pinned": _is_pinned(owner), "items": data}
    out.result(result, names=[str(each["path"]) for each in data])


@outputs.command(
    "download", cls=base.Command,
    examples=("windlass outputs download train .", "windlass cp 'train:out/*.pt' ."),
)  # fmt: skip
@_name
@click.argument("folder", metavar="DIR", default=".")
@base.target_options
@click.pass_obj
def download(out: Output, name: str, folder: str, target: base.Target) -> None:
    """Download all outputs of RUN into DIR; those of several replicas into a folder each."""
    from windlass.cli.commands.jobs import cp
    from windlass.sdk.files import copying, saved

    async def work(session: client_session.Session) -> copying.Report:
        owner = await session.store.get(kind.Run, name.removeprefix("run/"), session.namespace)
        return await copying.with_retries(
            lambda: saved.download(session.store, owner, folder, show)
        )  # fmt: skip

    with cp.failures(), cp.progress(out) as show:
        report = client_session.call(target, work)
    cp.show_report(out, report, folder)


@outputs.command("pin", cls=base.Command, examples=("windlass outputs pin train",))
@_name
@base.target_options
@click.pass_obj
def pin(out: Output, name: str, target: base.Target) -> None:
    """Keep RUN and its outputs when its --ttl is over, and from `windlass prune`."""
    _annotate(out, name, "true", "is pinned: it is kept until it is deleted by name", target)


@outputs.command("unpin", cls=base.Command, examples=("windlass outputs unpin train",))
@_name
@base.target_options
@click.pass_obj
def unpin(out: Output, name: str, target: base.Target) -> None:
    """Undo `pin`: RUN is deleted when its --ttl is over."""
    _annotate(out, name, None, "is no longer pinned", target)


@outputs.command("usage", cls=base.Command, examples=("windlass outputs usage -N vision",))
@base.target_options
@click.pass_obj
def usage(out: Output, target: base.Target) -> None:
    """Show how much the team keeps, and its quota."""
    from windlass.sdk.files import copying

    async def work(session: client_session.Session) -> dict[str, Any]:
        path = f"{client_session.PLATFORM}/namespaces/{session.namespace}/outputs"
        return {**await session.read(path), "namespace": session.namespace}

    found = client_session.call(target, work)
    used, quota = copying.human(found["bytes"]), copying.human(found["quota"])
    out.say(f"Team {found['namespace']} keeps {used} of outputs; its quota is {quota}.")
    out.result({key: found[key] for key in ("namespace", "bytes", "quota")}, names=[used])


@outputs.command("quota", cls=base.Command, examples=("windlass outputs quota 200Gi -N vision",))
@click.argument("size", metavar="SIZE")
@base.target_options
@click.pass_obj
def quota(out: Output, size: str, target: base.Target) -> None:
    """Set how much the runs of a team keep together; for administrators of the platform."""
    from windlass.kinds.values import quantity

    try:
        quantity.whole(size)
    except ValueError:
        raise exit_codes.CliError(
            f"{size} is not a size.", "Write 500Gi or 2Ti.", exit_codes.USAGE
        ) from None

    async def work(session: client_session.Session) -> str:
        patch = {"metadata": {"annotations": {OUTPUTS_QUOTA: size}}}
        await session.store.patch(core.Namespace, session.namespace, patch=patch)
        return session.namespace

    namespace = client_session.call(target, work)
    out.say(f"Team {namespace} keeps up to {size} of outputs.")
    out.result({"namespace": namespace, "quota": size}, names=[namespace])


def _annotate(out: Output, name: str, value: str | None, what: str, target: base.Target) -> None:
    async def work(session: client_session.Session) -> kind.Run:
        patch = {"metadata": {"annotations": {PINNED: value}}}
        return await session.store.patch(
            kind.Run, name.removeprefix("run/"), session.namespace, patch=patch
        )

    changed = client_session.call(target, work)
    out.say(f"run/{changed.name} {what}.")
    out.result({"run": changed.name, "pinned": _is_pinned(changed)}, names=[changed.name])


def _is_pinned(owner: kind.Run) -> bool:
    return (owner.metadata.annotations or {}).get(PINNED) == "true"
