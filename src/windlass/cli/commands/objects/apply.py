"""`windlass apply`: creates or changes objects from files."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names, manifests
from windlass.cli.lib.manifests import Document
from windlass.cli.lib.output import Output
from windlass.kinds.types import run
from windlass.kinds.types.meta import Object
from windlass.sdk import apply as sdk_apply
from windlass.store import errors


@base.command(
    examples=(
        "windlass apply -f run.yaml",
        "windlass apply -f team/ --dry-run",
        "sed s/SEED/7/ run.yaml | windlass apply -f - --json | jq -r '.results[].action'",
    )
)
@click.option(
    "-f", "--file", "files", required=True, multiple=True, metavar="FILE",
    help="YAML or JSON file, folder, or - for stdin; may be repeated.",
)  # fmt: skip
@click.option("--dry-run", is_flag=True, help="Let the server validate; change nothing.")
@click.option("--force", is_flag=True, help="Even if a Run waits for a run that does not exist.")
@base.target_options
def apply(
    out: Output, files: tuple[str, ...], dry_run: bool, force: bool, target: base.Target
) -> int:
    """Create the objects in FILEs, or change existing ones to match the files.

    All files are validated first; nothing is sent if one is wrong. A field that an earlier apply
    set and FILE leaves out is removed; fields set by other clients stay. Lists are replaced whole.
    """
    documents = [
        (kind_names.kind_of_document(document.data, document.place("kind")), document)
        for document in manifests.read_all(files)
    ]
    manifests.check(documents)
    _refuse_other_namespaces(documents, target.namespace)

    async def work(session: client_session.Session) -> int:
        manifests.refuse_repeated(documents, session.namespace)
        if not force:
            await _require_runs(session, documents)
        results, code = [], exit_codes.OK
        for kind, document in documents:
            try:
                results.append(await _apply(out, session, kind, document, dry_run))
            except errors.ApiError as problem:
                fault = session.fault(problem)
                out.error(f"{document.place()}: {fault.message}", fault.remedy, fault.code)
                code = code or fault.code
        names = [f"{result['kind'].lower()}/{result['name']}" for result in results]
        out.result({"results": results, "dryRun": dry_run}, names=names)
        return code

    return client_session.call(target, work)


async def _apply(
    out: Output,
    session: client_session.Session,
    kind: type[Object],
    document: Document,
    dry_run: bool,
) -> dict[str, Any]:
    namespace = _namespace(session, kind, document)
    outcome = await sdk_apply.apply(session.store, kind, document.data, namespace, dry_run=dry_run)
    name = outcome.object["metadata"]["name"]
    how = f"{outcome.action} (dry run)" if dry_run else outcome.action
    out.say(f"{kind.resource.singular}/{name} {how}")
    return {
        "kind": kind.resource.kind,
        "name": name,
        "namespace": namespace or None,
        "action": outcome.action,
    }


async def _require_runs(
    session: client_session.Session, documents: list[tuple[type[Object], Document]]
) -> None:
    """Refuses Runs that wait for runs that are neither in these files nor on the server."""
    from windlass.cli.lib.jobs import follow

    by_namespace: dict[str, list[dict[str, Any]]] = {}
    for kind, document in documents:
        if kind is run.Run:
            place = _namespace(session, kind, document)
            by_namespace.setdefault(place, []).append(document.data)
    for namespace, values in by_namespace.items():
        if any((value.get("spec") or {}).get("after") for value in values):
            await follow.require_runs(session, values, namespace)


def _refuse_other_namespaces(
    documents: list[tuple[type[Object], Document]], namespace: str
) -> None:
    for kind, document in documents:
        written = document.data["metadata"].get("namespace")
        if namespace and kind.resource.namespaced and written and written != namespace:
            raise exit_codes.CliError(
                f"{document.place('metadata.namespace')} has namespace {written}, "
                f"but --namespace is {namespace}.",
                "Leave out one of them.",
                exit_codes.USAGE,
            )


def _namespace(session: client_session.Session, kind: type[Object], document: Document) -> str:
    """The namespace in the file, else the default one."""
    if not kind.resource.namespaced:
        return ""
    written = document.data["metadata"].get("namespace")
    return str(written) if written else session.namespace
