"""`windlass queue tree` and `queue apply`: show the queue tree, or set it from a file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.lib import base, client_session, exit_codes, live, manifests, quantities
from windlass.cli.lib.output import Output
from windlass.kinds import quota_tree_file
from windlass.kinds.values import quantity

if TYPE_CHECKING:
    from windlass.sdk.admin import queues

_COLUMNS = ("guarantee", "limit", "used", "borrowed", "lent", "pending")
_ACTIONS = {
    "starts": "start", "grows": "grow", "stops": "are stopped", "shrinks": "shrink",
    "takes over": "wait for preempted runs to exit", "is reserved": "get a reserved start",
}  # fmt: skip
"""Actions of the next decision as the server names them -> as this command prints them."""


@base.command(
    examples=(
        "windlass queue tree",
        "windlass queue tree -w",
        "windlass queue tree -r gpu --json | jq '.items[].used'",
        "windlass queue tree -o yaml > tree.yaml     # for queue apply",
    )
)
@click.option("-w", "--watch", is_flag=True, help="Refresh in place until Ctrl-C.")
@click.option("--interval", type=click.FloatRange(min=0.5), default=2.0, help="Seconds.")
@click.option("-r", "--resource", "only", default="", help="Only this resource.")
@click.option("-o", "--output", "form", type=click.Choice(("table", "yaml")), default="table",
              help="yaml: a file for `queue apply`.")  # fmt: skip
@base.target_options
def tree(
    out: Output, watch: bool, interval: float, only: str, form: str, target: base.Target
) -> None:
    """Show what each queue may use, uses, borrows and lends, and the scheduler's next decision."""

    async def work(session: client_session.Session) -> None:
        from windlass.sdk.admin import queues

        if form == "yaml":
            import yaml

            out.raw(yaml.safe_dump(await queues.exported(session.store), sort_keys=False).rstrip())
            return
        screen = live.Screen(out)
        while True:
            tree = await queues.tree(session.store)
            if not watch:
                out.result(tree, names=[each["name"] for each in tree["items"]])
                for line in lines(out, tree, only):
                    out.say(line)
                return
            out.item(tree)
            screen.show(lines(out, tree, only))
            await asyncio.sleep(interval)

    client_session.call(target, work)


@base.command(
    examples=(
        "windlass queue apply -f tree.yaml --dry-run",
        "windlass queue apply -f tree.yaml --yes",
        "windlass queue apply -f tree.yaml --prune    # deletes queues that the file has not",
    )
)
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE|-",
              help="The tree: nested queues, or Queue objects.")  # fmt: skip
@click.option("--prune", is_flag=True, help="Delete queues that are not in the file.")
@click.option("--dry-run", is_flag=True, help="Only show what would change.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@base.target_options
def apply(
    out: Output, files: tuple[str, ...], prune: bool, dry_run: bool, yes: bool, target: base.Target
) -> None:
    """Set the queue tree to that of FILE, after showing what each queue gains or loses and which
    runs stop."""
    wanted = _read(files)

    async def plan(session: client_session.Session) -> queues.Plan:
        from windlass.sdk.admin import queues

        return await queues.plan(session.store, wanted, prune=prune)

    async def work(session: client_session.Session) -> list[str]:
        from windlass.sdk.admin import queues

        written = await queues.apply(session.store, wanted, planned)
        guaranteed = [each.name for each in planned.changes if "guarantee" in each.fields]
        for sentence in await queues.overcommitted(session.store, *guaranteed):
            out.warn(exit_codes.sentence(sentence))
        return written

    planned = client_session.call(target, plan)
    for line in _difference(planned):
        out.say(line)
    done: list[str] = []
    if not planned.changes:
        out.say("No changes: the tree matches the file.")
    elif not dry_run:
        if not yes:
            out.confirm("Do it?", "--yes")
        done = client_session.call(target, work)
        for line in done:
            out.say(line)
    out.result(
        {
            "changes": [
                {"queue": each.name, "action": each.action,
                 "fields": {key: {"before": b, "after": a} for key, (b, a) in each.fields.items()}}
                for each in planned.changes
            ],
            "unchanged": planned.unchanged,
            "notInFile": planned.others,
            "effect": planned.effect,
            "applied": bool(done),
        },
        names=[each.name for each in planned.changes],
    )  # fmt: skip


def lines(out: Output, tree: dict[str, Any], only: str = "") -> list[str]:
    """The tree as a table, one line per queue and resource, and the next decision."""
    rows = []
    for item in tree["items"]:
        for number, resource in enumerate(_resources(tree, only)):
            if not any(resource in item[column] for column in _COLUMNS) and number:
                continue
            name = "  " * item["depth"] + item["name"] + (" (paused)" if item["held"] else "")
            cells = [_cell(item, column, resource) for column in _COLUMNS]
            share = f"{item['share']:.3f}" if not number else ""
            counts = [str(item["running"]), str(item["waiting"])] if not number else ["", ""]
            rows.append([name if not number else "", resource, *cells, *counts, share])
    header = [
        "QUEUE", "RESOURCE", "GUAR", "LIMIT", "USED", "BORR", "LENT", "PEND", "RUN", "WAIT",
        "SHARE",
    ]  # fmt: skip
    return [*out.table_lines(header, rows), *_next(tree)]


def _cell(item: dict[str, Any], column: str, resource: str) -> str:
    value = item[column].get(resource)
    if column == "guarantee" and value is not None:
        counts = item["counts"].get(resource, "0")
        if quantity.milli(counts) < quantity.milli(value):
            return f"{value}>{counts}"  # the guarantees exceed the capacity
    return "-" if value is None else str(value)


def _resources(tree: dict[str, Any], only: str) -> list[str]:
    """Resources with a guarantee or a limit; else those that runs use or wait for."""
    if only:
        return [only]
    for columns in (("guarantee", "limit"), ("used", "pending")):
        found = {name for item in tree["items"] for column in columns for name in item[column]}
        if found:
            return sorted(found)
    return ["cpu"]


def _next(tree: dict[str, Any]) -> list[str]:
    lines = []
    for item in tree["items"]:
        parts = []
        for what, act in item["next"].items():
            names = ", ".join(each["run"] for each in act["runs"][:3])
            more = f" ({names}{', ...' if act['count'] > 3 else ''})" if names else ""
            parts.append(f"{act['count']} {_ACTIONS.get(what, what)}{more}")
        parts += [f"{n} {reason}" for reason, n in item["waits"].items()] if parts else []
        if parts:
            lines.append(f"next in {item['name']}: {'; '.join(parts)}")
        standing = item["standing"]
        if standing["sentence"]:
            use = f"uses {standing['share']:.1%}, entitled to {standing['entitlement']:.1%}"
            lines.append(f"{item['name']}: {use}, {standing['sentence']}")
        lines += [f"{item['name']}: {trouble}" for trouble in item["troubles"]]
        lines += [item["held"]] if item["held"] else []
    if not any(line.startswith("next in") for line in lines):
        due = (
            f" The next decision is due at {tree['due']}, or when something changes."
            if tree["due"]
            else ""
        )
        lines.append(f"No changes pending.{due}")
    return lines


def _read(files: tuple[str, ...]) -> list[dict[str, Any]]:
    """The queues of all files, nested or as Queue objects."""
    found: list[dict[str, Any]] = []
    for document in manifests.read_all(files):
        if document.data.get("kind") == "Queue":
            found.append(
                {"metadata": {"name": (document.data.get("metadata") or {}).get("name", "")},
                 "spec": document.data.get("spec") or {}}
            )  # fmt: skip
            continue
        try:
            found += quota_tree_file.flatten(document.data)
        except quota_tree_file.Malformed as problem:
            raise exit_codes.CliError(
                f"{document.source}: {problem}.",
                "Write queues: {company: {guarantee: {gpu: 64}, queues: {support: {...}}}}; "
                "`windlass queue tree -o yaml` prints an example.",
                exit_codes.INVALID,
            ) from None
    names = [each["metadata"]["name"] for each in found]
    for name in names:
        if names.count(name) > 1:
            raise exit_codes.CliError(
                f"Queue {name} is in the files twice.", "Remove one of them.", exit_codes.INVALID
            )
    return found


def _difference(planned: queues.Plan) -> list[str]:
    signs = {"create": "+", "change": "~", "delete": "-"}
    lines = []
    for change in planned.changes:
        parts = [
            f"{key} {_formatted(b)} -> {_formatted(a)}" for key, (b, a) in change.fields.items()
        ]
        lines.append(
            f"{signs[change.action]} {change.name}{': ' if parts else ''}{', '.join(parts)}"
        )
    if planned.unchanged:
        lines.append(f"= {', '.join(planned.unchanged)}")
    if planned.others:
        lines.append(f"not in the file, not changed: {', '.join(planned.others)}")
    if planned.changes:
        lines += _effect(planned.effect)
    return lines


def _effect(effect: dict[str, Any]) -> list[str]:
    lines = []
    shared = {
        resource
        for row in effect["queues"]
        for word in ("guarantee", "limit")
        for side in row[word].values()
        for resource in side or ()
    }
    for row in effect["queues"]:
        for word in ("guarantee", "used"):
            before, after = row[word]["before"] or {}, row[word]["after"] or {}
            for resource in sorted({*before, *after} & shared):
                old, new = str(before.get(resource, 0)), str(after.get(resource, 0))
                if quantity.milli(old) != quantity.milli(new):
                    gains = "gains" if quantity.milli(new) > quantity.milli(old) else "loses"
                    what = "is guaranteed" if word == "guarantee" else "will use"
                    lines.append(f"{row['name']} {gains}: {what} {new} {resource} instead of {old}")
    for word, outcome in (("stopped", "would be stopped"), ("shrunk", "would shrink"),
                       ("started", "would start")):  # fmt: skip
        lines += _runs(effect[word], outcome)
    if not any(effect[word] for word in ("stopped", "shrunk")):
        lines.append("No run would be stopped.")
    if not effect["settled"]:
        lines.append("Later decisions would start or stop more runs.")
    return lines


def _runs(listed: list[dict[str, Any]], outcome: str) -> list[str]:
    lines = []
    unseen: dict[str, int] = {}
    for each in listed:
        if not each["run"]:
            unseen[each["queue"]] = unseen.get(each["queue"], 0) + 1
            continue
        count = f" by {each['members']} replicas" if each.get("members") else ""
        preemptor = f" for {each['for']}" if each.get("for") else ""
        lines.append(f"{outcome}{count}: {each['run']} of queue {each['queue']}{preemptor}")
    lines += [f"{outcome}: {count} runs of queue {name}" for name, count in unseen.items()]
    return lines


def _formatted(value: Any) -> str:
    if isinstance(value, dict):
        return quantities.format_amounts(value)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value is None else str(value)
