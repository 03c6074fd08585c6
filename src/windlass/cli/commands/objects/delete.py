"""`windlass delete`: deletes objects by name, or all objects of files."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names, manifests
from windlass.cli.lib.output import Output
from windlass.kinds.types.meta import Object
from windlass.store import errors


@base.command(
    examples=(
        "windlass delete run train",
        "windlass delete run/a run/b",
        "windlass delete -f runs/ --ignore-not-found",
    )
)
@click.argument("kind", required=False, default="", type=kind_names.KindName())
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=kind_names.complete_names)
@click.option("-f", "--file", "files", multiple=True, metavar="FILE", help="File, folder or -.")
@click.option("--ignore-not-found", is_flag=True, help="Missing objects are no error.")
@click.option("--dry-run", is_flag=True, help="Let the server validate; change nothing.")
@base.target_options
def delete(
    out: Output,
    kind: str,
    names: tuple[str, ...],
    files: tuple[str, ...],
    ignore_not_found: bool,
    dry_run: bool,
    target: base.Target,
) -> int:
    """Delete objects by KIND and NAME, or those that FILEs describe.

    Deleting a Run stops its replicas by its checkpoint contract and removes its record.
    """
    wanted = _wanted(kind, names, files)

    async def work(session: client_session.Session) -> int:
        gone, code = [], exit_codes.OK
        for chosen, name, namespace in wanted:
            label = f"{chosen.resource.singular}/{name}"
            place = (namespace or session.namespace) if chosen.resource.namespaced else ""
            try:
                left = await session.store.delete(chosen, name, place, dry_run=dry_run)
            except errors.NotFound as problem:
                if not ignore_not_found:
                    fault = session.fault(problem)
                    out.error(fault.message, fault.remedy, fault.code)
                    code = fault.code
                continue
            gone.append(label)
            how = "would be deleted" if dry_run else "deleted" if left is None else "stopping"
            out.say(f"{label} {how}")
        out.result({"deleted": gone, "dryRun": dry_run}, names=gone)
        return code

    return client_session.call(target, work)


def _wanted(
    kind: str, names: tuple[str, ...], files: tuple[str, ...]
) -> list[tuple[type[Object], str, str]]:
    """Kind, name and namespace (if the file has one) of each object to delete."""
    if files:
        if kind:
            raise exit_codes.CliError(
                "Names and --file cannot be combined.", "Use one of them.", exit_codes.USAGE
            )
        documents = manifests.read_all(files)
        # In reverse order: later objects of a file may depend on earlier ones.
        return [_from_document(document) for document in reversed(documents)]
    slashed = [word for word in (kind, *names) if "/" in word]
    if slashed and len(slashed) == len((kind, *names)):
        pairs = (word.partition("/") for word in slashed)
        return [(kind_names.kind_of(word), name, "") for word, _, name in pairs]
    if not kind or not names:
        raise exit_codes.CliError(
            "No object was named.",
            "Use a kind and names (`windlass delete run train`), or -f FILE.",
            exit_codes.USAGE,
        )
    return [(kind_names.kind_of(kind), name, "") for name in names]


def _from_document(document: manifests.Document) -> tuple[type[Object], str, str]:
    kind = kind_names.kind_of_document(document.data, document.place("kind"))
    metadata: Any = document.data.get("metadata")
    name = metadata.get("name") if isinstance(metadata, dict) else None
    if not isinstance(name, str) or not name:
        raise exit_codes.CliError(
            f"{document.place('metadata')}: the object has no metadata.name.",
            "",
            exit_codes.INVALID,
        )
    return kind, name, str(metadata.get("namespace") or "")
