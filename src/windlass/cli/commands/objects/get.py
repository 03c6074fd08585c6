"""`windlass get`: prints objects as a table, JSON or YAML, once or on every change."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any

import click

from windlass.cli.lib import base, client_session, exit_codes, kind_names, server_target, table
from windlass.cli.lib.output import Output, flush
from windlass.kinds import codec, validate
from windlass.kinds.types import run_status
from windlass.kinds.types.meta import Object
from windlass.kinds.types.run import Run
from windlass.sdk import watching
from windlass.store import errors

FORMATS = ("table", "wide", "json", "yaml", "name")


@base.command(
    examples=(
        "windlass get runs",
        "windlass get run train -o yaml",
        "windlass get runs -A -l team=vision --json | jq -r '.items[].metadata.name'",
        "windlass get runs -w",
    )
)
@click.argument("kind", type=kind_names.KindName())
@click.argument("names", metavar="[NAME]...", nargs=-1, shell_complete=kind_names.complete_names)
@click.option("-A", "--all-namespaces", is_flag=True, help="In all namespaces.")
@click.option("-l", "--selector", default="", help="Only objects with these labels: a=b,c!=d.")
@click.option(
    "-o", "--output", "form", type=click.Choice(FORMATS), default="table", show_default=True
)
@click.option("-w", "--watch", is_flag=True, help="Print changes until Ctrl-C.")
@base.target_options
def get(
    out: Output,
    kind: str,
    names: tuple[str, ...],
    all_namespaces: bool,
    selector: str,
    form: str,
    watch: bool,
    target: base.Target,
) -> None:
    """List the objects of a KIND, or show the named ones.

    KIND is a name such as runs, run, or a short one such as wr. With --watch and JSON each change
    is one line: {"type": "ADDED", "object": ...}.
    """
    kind, names = kind_names.split(kind, names)
    chosen = kind_names.kind_of(kind)
    if form == "json":
        out.mode = "json"
    elif form == "name":
        out.mode = "quiet"
    if names and (selector or all_namespaces):
        raise exit_codes.CliError(
            "A name cannot be combined with --selector or --all-namespaces.",
            "Use names, or a selection.",
            exit_codes.USAGE,
        )
    query = Query(chosen, names, selector, all_namespaces)
    client_session.call(target, lambda session: _show(out, session, query, form, watch))


class Query:
    """The objects that the command selects."""

    def __init__(
        self, kind: type[Object], names: Sequence[str], selector: str, everywhere: bool
    ) -> None:
        self.kind = kind
        self.names = names
        self.selector = selector
        self.everywhere = everywhere

    def namespace(self, session: client_session.Session) -> str:
        if self.everywhere or not self.kind.resource.namespaced:
            return ""
        return session.namespace

    async def fetch(self, session: client_session.Session) -> list[dict[str, Any]]:
        """The objects as the server returns them, with all fields."""
        resource = self.kind.resource
        namespace = self.namespace(session)
        head = {"apiVersion": resource.api_version, "kind": resource.kind}
        if self.names:
            paths = [server_target.path_of(self.kind, namespace, name) for name in self.names]
            return [head | await session.read(path) for path in paths]
        objects: list[dict[str, Any]] = []
        token = ""
        while True:
            query = [("limit", "500"), ("continue", token), ("labelSelector", self.selector)]
            page = await session.read(server_target.path_of(self.kind, namespace), query)
            objects += [head | item for item in page["items"]]
            token = page["metadata"].get("continue") or ""
            if not token:
                return objects


async def _show(
    out: Output, session: client_session.Session, query: Query, form: str, watch: bool
) -> None:
    printer = Printer(out, query, form)
    if watch:
        await _follow(session, query, printer)
    else:
        found = await query.fetch(session)
        printer.print_all(found, session.namespace)
        if query.kind is Run and len(query.names) == 1 and form in ("table", "wide"):
            await _print_cost(out, session, found[0])


async def _print_cost(out: Output, session: client_session.Session, owner: dict[str, Any]) -> None:
    """The cost of one run, if prices are known and the user may read them."""
    metadata = owner["metadata"]
    path = f"{client_session.PLATFORM}/namespaces/{metadata['namespace']}/usage"
    since = metadata.get("creationTimestamp", "")
    query = [("run", metadata["name"]), ("by", "run"), ("since", since)]
    with contextlib.suppress(errors.ApiError):
        cost = (await session.read(path, query))["total"].get("cost")
        over = owner.get("status", {}).get("phase") in run_status.FINISHED
        if cost:
            out.hint(f"Cost: {cost}{'' if over else ' so far'}.")


async def _follow(session: client_session.Session, query: Query, printer: Printer) -> None:
    """Prints the existing objects, then each change."""
    one = f"metadata.name={query.names[0]}" if len(query.names) == 1 else ""
    stream = watching.changes(
        session.store,
        query.kind,
        query.namespace(session),
        label_selector=query.selector,
        field_selector=one,
    )
    async with contextlib.aclosing(stream) as changes:
        async for change, obj in changes:
            if not query.names or obj.name in query.names:
                # Structs leave out values that equal their default; the output shows them.
                printer.print_change(change, validate.defaulted(query.kind, codec.to_dict(obj)))


class Printer:
    """Prints objects in the chosen format."""

    def __init__(self, out: Output, query: Query, form: str) -> None:
        self.out = out
        self.query = query
        self.form = form
        self._widths: list[int] = []

    def print_all(self, objects: list[dict[str, Any]], namespace: str) -> None:
        resource = self.query.kind.resource
        one = len(self.query.names) == 1
        if self.form == "yaml":
            self.out.raw(table.to_yaml(objects[0] if one else table.as_list(objects)).rstrip())
            return
        self.out.result(
            objects[0] if one else table.as_list(objects),
            names=[f"{resource.singular}/{obj['metadata']['name']}" for obj in objects],
        )
        if not objects:
            where = f" in namespace {namespace}" if self._one_namespace() else ""
            self.out.hint(f"No {resource.plural} found{where}.")
            return
        self.out.table(self._header(), [self._row(obj) for obj in objects])

    def print_change(self, change: str, obj: dict[str, Any]) -> None:
        if self.form == "yaml":
            self.out.raw("---\n" + table.to_yaml(obj).rstrip())
            return
        name = f"{self.query.kind.resource.singular}/{obj['metadata']['name']}"
        self.out.item({"type": change, "object": obj}, name=name)
        header = self._header()
        cells = [self._row(obj, gone=change == "DELETED")]
        if not self._widths:
            self._widths = [max(len(a), len(b), 10) for a, b in zip(header, cells[0], strict=True)]
            cells.insert(0, header)
        for row in cells:
            padded = [cell.ljust(width) for cell, width in zip(row, self._widths, strict=True)]
            self.out.say("  ".join(padded).rstrip())
        flush()

    def _one_namespace(self) -> bool:
        return self.query.kind.resource.namespaced and not self.query.everywhere

    def _header(self) -> list[str]:
        columns = table.columns(self.query.kind.resource, self.form == "wide")
        first = ["NAMESPACE"] if self.query.everywhere else []
        return [*first, "NAME", *(column.name.upper() for column in columns)]

    def _row(self, obj: dict[str, Any], gone: bool = False) -> list[str]:
        metadata = obj["metadata"]
        first = [metadata.get("namespace", "")] if self.query.everywhere else []
        name = metadata["name"] + (" (deleted)" if gone else "")
        cells = table.cells(self.query.kind.resource, obj, self.form == "wide")
        return [*first, name, *cells]
