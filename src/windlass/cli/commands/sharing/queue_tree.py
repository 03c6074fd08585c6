"""`windlass queue tree` and `windlass queue apply`: the sharing tree live, and out of a file."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import click

from windlass.cli import amounts, base, client, exits, live, manifests
from windlass.cli.output import Output
from windlass.kinds import quantity, queuetree

if TYPE_CHECKING:
    from windlass.sdk import queues

_COLUMNS = ("guarantee", "limit", "used", "borrowed", "lent", "pending")
_WORDS = {
    "starts": "start", "grows": "grow", "stops": "are stopped", "shrinks": "give members",
    "takes over": "get room that is being freed", "is promised": "are promised a start",
}  # fmt: skip


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
              help="yaml: the tree as a file for `queue apply`.")  # fmt: skip
@base.target_options
def tree(
    out: Output, watch: bool, interval: float, only: str, form: str, target: base.Target
) -> None:
    """Show who has, uses, borrows and lends how much, and what the next decision does."""

    async def work(session: client.Session) -> None:
        from windlass.sdk import queues

        if form == "yaml":
            import yaml

            out.raw(yaml.safe_dump(await queues.exported(session.store), sort_keys=False).rstrip())
            return
        screen = live.Screen(out)
        while True:
            told = await queues.tree(session.store)
            if not watch:
                out.result(told, names=[each["name"] for each in told["items"]])
                for line in lines(out, told, only):
                    out.say(line)
                return
            out.item(told)
            screen.show(lines(out, told, only))
            await asyncio.sleep(interval)

    client.call(target, work)


@base.command(
    examples=(
        "windlass queue apply -f tree.yaml --dry-run",
        "windlass queue apply -f tree.yaml --yes",
        "windlass queue apply -f tree.yaml --prune    # deletes queues that the file has not",
    )
)
@click.option("-f", "--file", "files", multiple=True, required=True, metavar="FILE|-",
              help="The tree: queues inside queues, or Queue objects.")  # fmt: skip
@click.option("--prune", is_flag=True, help="Delete queues that are not in the file.")
@click.option("--dry-run", is_flag=True, help="Only show what would change, and for whom.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@base.target_options
def apply(
    out: Output, files: tuple[str, ...], prune: bool, dry_run: bool, yes: bool, target: base.Target
) -> None:
    """Make the tree as in FILE, after showing what each team gains or loses and whose runs that
    would stop."""
    wanted = _read(files)

    async def plan(session: client.Session) -> queues.Plan:
        from windlass.sdk import queues

        return await queues.plan(session.store, wanted, prune=prune)

    async def work(session: client.Session) -> list[str]:
        from windlass.sdk import queues

        return await queues.apply(session.store, wanted, planned)

    planned = client.call(target, plan)
    for line in _difference(planned):
        out.say(line)
    done: list[str] = []
    if not planned.changes:
        out.say("The tree is as it should be; nothing was changed.")
    elif not dry_run:
        if not yes:
            out.confirm("Do it?", "--yes")
        done = client.call(target, work)
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


def lines(out: Output, told: dict[str, Any], only: str = "") -> list[str]:
    """The tree as a table, a line per queue and resource, and what happens next."""
    rows = []
    for item in told["items"]:
        for number, resource in enumerate(_resources(told, only)):
            if not any(resource in item[column] for column in _COLUMNS) and number:
                continue
            name = "  " * item["depth"] + item["name"] + (" (held)" if item["held"] else "")
            cells = [_cell(item, column, resource) for column in _COLUMNS]
            share = f"{item['share']:.3f}" if not number else ""
            counts = [str(item["running"]), str(item["waiting"])] if not number else ["", ""]
            rows.append([name if not number else "", resource, *cells, *counts, share])
    header = [
        "QUEUE", "RESOURCE", "GUAR", "LIMIT", "USED", "BORR", "LENT", "PEND", "RUN", "WAIT",
        "SHARE",
    ]  # fmt: skip
    return [*out.table_lines(header, rows), *_next(told)]


def _cell(item: dict[str, Any], column: str, resource: str) -> str:
    value = item[column].get(resource)
    if column == "guarantee" and value is not None:
        counts = item["counts"].get(resource, "0")
        if quantity.milli(counts) < quantity.milli(value):
            return f"{value}>{counts}"  # more is guaranteed than there is
    return "-" if value is None else str(value)


def _resources(told: dict[str, Any], only: str) -> list[str]:
    """Those that somebody is guaranteed or limited in; else what is used or waited for."""
    if only:
        return [only]
    for columns in (("guarantee", "limit"), ("used", "pending")):
        found = {name for item in told["items"] for column in columns for name in item[column]}
        if found:
            return sorted(found)
    return ["cpu"]


def _next(told: dict[str, Any]) -> list[str]:
    lines = []
    for item in told["items"]:
        parts = []
        for what, act in item["next"].items():
            names = ", ".join(each["run"] for each in act["runs"][:3])
            more = f" ({names}{', ...' if act['count'] > 3 else ''})" if names else ""
            parts.append(f"{act['count']} {_WORDS[what]}{more}")
        parts += [f"{n} {reason}" for reason, n in item["waits"].items()] if parts else []
        if parts:
            lines.append(f"next in {item['name']}: {'; '.join(parts)}")
        standing = item["standing"]
        if standing["sentence"]:
            held = f"{standing['share']:.1%} held, {standing['entitlement']:.1%} entitled"
            lines.append(f"{item['name']}: {held}, {standing['sentence']}")
        lines += [f"{item['name']}: {trouble}" for trouble in item["troubles"]]
        lines += [item["held"]] if item["held"] else []
    if not any(line.startswith("next in") for line in lines):
        due = f"; it is due {told['due']} if nothing changes before" if told["due"] else ""
        lines.append(f"The next decision moves nobody{due}.")
    return lines


def _read(files: tuple[str, ...]) -> list[dict[str, Any]]:
    """The queues of all files, in either form."""
    found: list[dict[str, Any]] = []
    for document in manifests.read_all(files):
        if document.data.get("kind") == "Queue":
            found.append(
                {"metadata": {"name": (document.data.get("metadata") or {}).get("name", "")},
                 "spec": document.data.get("spec") or {}}
            )  # fmt: skip
            continue
        try:
            found += queuetree.flatten(document.data)
        except queuetree.Malformed as problem:
            raise exits.CliError(
                f"{document.source}: {problem}.",
                "Write queues: {company: {guarantee: {gpu: 64}, queues: {support: {...}}}}; "
                "`windlass queue tree -o yaml` shows one.",
                exits.INVALID,
            ) from None
    names = [each["metadata"]["name"] for each in found]
    for name in names:
        if names.count(name) > 1:
            raise exits.CliError(
                f"Queue {name} is in the files twice.", "Keep one of them.", exits.INVALID
            )
    return found


def _difference(planned: queues.Plan) -> list[str]:
    signs = {"create": "+", "change": "~", "delete": "-"}
    lines = []
    for change in planned.changes:
        parts = [f"{key} {_told(b)} -> {_told(a)}" for key, (b, a) in change.fields.items()]
        lines.append(
            f"{signs[change.action]} {change.name}{': ' if parts else ''}{', '.join(parts)}"
        )
    if planned.unchanged:
        lines.append(f"= {', '.join(planned.unchanged)}")
    if planned.others:
        lines.append(f"not in the file, left alone: {', '.join(planned.others)}")
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
                    what = "may count on" if word == "guarantee" else "will hold"
                    lines.append(f"{row['name']} {gains}: {what} {resource} {old} -> {new}")
    for word, told in (("stopped", "would be stopped"), ("shrunk", "would give members"),
                       ("started", "would start")):  # fmt: skip
        lines += _runs(effect[word], told)
    if not any(effect[word] for word in ("stopped", "shrunk")):
        lines.append("Nobody would be stopped.")
    if not effect["settled"]:
        lines.append("This is not the end of it: more would move later.")
    return lines


def _runs(listed: list[dict[str, Any]], told: str) -> list[str]:
    lines = []
    unseen: dict[str, int] = {}
    for each in listed:
        if not each["run"]:
            unseen[each["queue"]] = unseen.get(each["queue"], 0) + 1
            continue
        count = f" {each['members']}" if each.get("members") else ""
        whom = f" for {each['for']}" if each.get("for") else ""
        lines.append(f"{told}{count}: {each['run']} of queue {each['queue']}{whom}")
    lines += [f"{told}: {count} runs of queue {name}" for name, count in unseen.items()]
    return lines


def _told(value: Any) -> str:
    if isinstance(value, dict):
        return amounts.told(value)
    if isinstance(value, list):
        return ",".join(map(str, value))
    return "-" if value is None else str(value)
