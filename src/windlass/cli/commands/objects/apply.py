"""`windlass apply`: makes the server hold what files say."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import base, checking, client, exits, manifests, words
from windlass.cli.manifests import Document
from windlass.cli.output import Output
from windlass.kinds.meta import Object
from windlass.sdk import applying
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
@click.option("--dry-run", is_flag=True, help="Let the server check, but change nothing.")
@base.target_options
def apply(out: Output, files: tuple[str, ...], dry_run: bool, target: base.Target) -> int:
    """Create the objects in FILEs, or change those that exist into what the files say.

    Every file is checked first, and nothing is sent if one is wrong. A field that an earlier file
    set and this one leaves out is removed; what others have set stays. Lists are replaced whole.
    """
    documents = [
        (words.kind_of_document(document.data, document.place("kind")), document)
        for document in manifests.read_all(files)
    ]
    checking.check(documents)
    _refuse_other_namespaces(documents, target.namespace)

    async def work(session: client.Session) -> int:
        results, code = [], exits.OK
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

    return client.call(target, work)


async def _apply(
    out: Output, session: client.Session, kind: type[Object], document: Document, dry_run: bool
) -> dict[str, Any]:
    namespace = _namespace(session, kind, document)
    outcome = await applying.apply(session.store, kind, document.data, namespace, dry_run=dry_run)
    name = outcome.object["metadata"]["name"]
    how = f"{outcome.action} (dry run)" if dry_run else outcome.action
    out.say(f"{kind.resource.singular}/{name} {how}")
    return {
        "kind": kind.resource.kind,
        "name": name,
        "namespace": namespace or None,
        "action": outcome.action,
    }


def _refuse_other_namespaces(
    documents: list[tuple[type[Object], Document]], namespace: str
) -> None:
    for kind, document in documents:
        written = document.data["metadata"].get("namespace")
        if namespace and kind.resource.namespaced and written and written != namespace:
            raise exits.CliError(
                f"{document.place('metadata.namespace')} says namespace {written}, "
                f"the command line says {namespace}.",
                "Leave out one of them.",
                exits.USAGE,
            )


def _namespace(session: client.Session, kind: type[Object], document: Document) -> str:
    """The file's own namespace, else the one that is meant by default."""
    if not kind.resource.namespaced:
        return ""
    written = document.data["metadata"].get("namespace")
    return str(written) if written else session.namespace
