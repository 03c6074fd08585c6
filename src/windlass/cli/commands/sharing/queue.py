"""`windlass queue`: who may use how much, and who waits where."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli import amounts, base, client, exits, live, queuetree
from windlass.cli.output import Output
from windlass.kinds import quantity, wire
from windlass.kinds import queue as kind
from windlass.store import errors

_name = click.argument("name", metavar="QUEUE")


@click.group(name="queue", cls=base.Group)
def queue() -> None:
    """The sharing tree: guarantees, limits, order."""


def _settings(function: Any) -> Any:
    """Flags that say what a queue may use."""
    for option in (
        *amounts.QUEUE_OPTIONS,
        click.option("--team", "namespaces", multiple=True, help="Namespace whose runs use it."),
    ):
        function = option(function)
    return function


@base.command(
    examples=(
        "windlass queue create vision --team vision --guarantee gpu=8 --limit gpu=16",
        "windlass queue create fair --order fair --weight 2",
    )
)
@_name
@_settings
@base.target_options
def create(out: Output, name: str, target: base.Target, **flags: Any) -> None:
    """Make a QUEUE."""
    value = {
        "apiVersion": kind.Queue.resource.api_version,
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": _spec(flags),
    }
    made = client.call(
        target, lambda session: session.store.create(wire.from_dict(kind.Queue, _checked(value)))
    )
    out.say(f"queue/{name} created")
    out.result(wire.to_dict(made), names=[f"queue/{name}"])


@base.command(
    examples=("windlass queue set vision --limit gpu=32", "windlass queue set fair --weight 3"),
    name="set",
)
@_name
@_settings
@base.target_options
def change(out: Output, name: str, target: base.Target, **flags: Any) -> None:
    """Change what a QUEUE may use; what is not named stays."""
    spec = _spec(flags)
    if not spec:
        raise exits.CliError(
            "Nothing to change was named.", "For example --limit gpu=8.", exits.USAGE
        )
    made = client.call(
        target, lambda session: session.store.patch(kind.Queue, name, patch={"spec": spec})
    )
    out.say(f"queue/{name} changed")
    out.result(wire.to_dict(made), names=[f"queue/{name}"])


@base.command(examples=("windlass queue delete vision",))
@_name
@base.target_options
def delete(out: Output, name: str, target: base.Target) -> None:
    """Delete a QUEUE. Its runs wait until they name another one."""
    client.call(target, lambda session: session.store.delete(kind.Queue, name))
    out.say(f"queue/{name} deleted")
    out.result({"deleted": [name]}, names=[f"queue/{name}"])


@base.command(examples=("windlass queue list", "windlass queue list --json | jq"), name="list")
@base.target_options
def list_queues(out: Output, target: base.Target) -> None:
    """List all queues as a tree, with what each uses."""

    async def work(session: client.Session) -> list[kind.Queue]:
        return (await session.store.list(kind.Queue)).items

    found = client.call(target, work)
    rows = [
        ["  " * depth + each.name, each.spec.order, str(each.spec.weight),
         str(each.status.running), str(each.status.pending), amounts.told(each.status.used),
         amounts.told(each.status.borrowed), amounts.told(each.status.lent),
         amounts.told(each.spec.guarantee), amounts.told(each.spec.limit)]
        for depth, each in _tree(found)
    ]  # fmt: skip
    out.result([wire.to_dict(each) for each in found], names=[each.name for each in found])
    header = [
        "NAME", "ORDER", "WEIGHT", "RUN", "WAIT", "USED", "BORROWED", "LENT", "GUARANTEE", "LIMIT",
    ]  # fmt: skip
    out.table(header, rows)
    for each in found:
        for trouble in _troubles(each):
            out.warn(f"queue/{each.name}: {trouble}.")
    if not found:
        out.hint("No queues. Make one: windlass queue create NAME")


@base.command(examples=("windlass queue get vision",))
@_name
@base.target_options
def get(out: Output, name: str, target: base.Target) -> None:
    """Show one QUEUE: what it uses of what it may, and the first who wait in it."""

    async def work(session: client.Session) -> tuple[kind.Queue, dict[str, Any], dict[str, Any]]:
        from windlass.sdk import queues

        found = await session.store.get(kind.Queue, name)
        try:
            items = (await queues.tree(session.store))["items"]
        except errors.ApiError:
            items = []  # the platform's own server is not reachable
        shares: dict[str, Any] = next((item for item in items if item["name"] == name), {})
        try:
            page = await session.read(
                f"{client.PLATFORM}/ps", [("finished", "0"), ("limit", "500")]
            )
        except errors.ApiError:
            # Not everybody may see the runs of all teams.
            page = {"items": []}
        return found, page, shares

    found, page, shares = client.call(target, work)
    mine = [item for item in page["items"] if item["queue"] == name]
    standing = {key: shares[key] for key in ("standing", "pastUse", "users") if key in shares}
    out.result({"queue": wire.to_dict(found), "runs": mine, **standing}, names=[name])
    for line in [*_described(out, found), *_standing(shares)]:
        out.say(line)
    for item in mine:
        place = f" ({item['position']}/{item['of']})" if "position" in item else ""
        out.say(f"    {item['namespace']}/{item['name']} {item['phase']}{place}")


@base.command(examples=("windlass queue pause vision",))
@_name
@base.target_options
def pause(out: Output, name: str, target: base.Target) -> None:
    """Start nothing new in a QUEUE or below it; what runs goes on."""
    _stop(out, name, "hold", "paused: nothing new starts in it", target)


@base.command(
    examples=(
        "windlass queue drain vision --wait",
        "windlass queue drain vision --now     # stops what runs by its checkpoint contract",
    )
)
@_name
@click.option("--now", is_flag=True, help="Stop what runs, too; it waits until `resume`.")
@click.option("--wait", is_flag=True, help="Return when nothing runs in it any more.")
@base.target_options
def drain(out: Output, name: str, now: bool, wait: bool, target: base.Target) -> None:
    """Empty a QUEUE: what runs ends by itself (or --now), nothing starts until `resume`."""
    words = "being drained" + ("" if now else ": what runs goes on to its end")
    changed = _stop(out, name, "drain" if now else "hold", words, target)

    async def emptied(session: client.Session) -> None:
        from windlass.sdk import watching

        chosen = f"metadata.name={name}"
        async for _, each in watching.changes(session.store, kind.Queue, field_selector=chosen):
            seen = each.status.observed_generation >= changed.metadata.generation
            if seen and not each.status.running:
                return

    if wait:
        with out.progress(f"queue/{name} is being drained"):
            client.call(target, emptied)
        out.say(f"queue/{name} is empty")


@base.command(examples=("windlass queue resume vision",))
@_name
@base.target_options
def resume(out: Output, name: str, target: base.Target) -> None:
    """Open a QUEUE that was paused or drained."""
    _stop(out, name, None, "open", target)


def _stop(out: Output, name: str, how: str | None, told: str, target: base.Target) -> kind.Queue:
    async def work(session: client.Session) -> kind.Queue:
        from windlass.sdk import queues

        return await queues.stop(session.store, name, how)

    changed = client.call(target, work)
    out.say(f"queue/{name} is {told}")
    out.result(wire.to_dict(changed), names=[f"queue/{name}"])
    return changed


def _described(out: Output, found: kind.Queue) -> list[str]:
    """What it is and what it holds, line by line."""
    spec, status = found.spec, found.status
    lines = [
        f"queue/{found.name}: order {spec.order}, weight {spec.weight}"
        f"{', strict' if spec.strict else ''}{f', below {spec.parent}' if spec.parent else ''}"
        f"{', for ' + ', '.join(spec.namespaces) if spec.namespaces else ''}"
    ]
    used, limits = status.used or {}, spec.limit or spec.guarantee or {}
    borrowed, lent = status.borrowed or {}, status.lent or {}
    for resource in sorted({*used, *limits, *lent}):
        amount, most = used.get(resource, "0"), limits.get(resource)
        graph = ""
        if most and quantity.milli(most):
            graph = live.bar(out, quantity.milli(amount) / quantity.milli(most)) + " "
        parts = [f"{amount} used" + (f" of {most}" if most else "")]
        parts += [f"{borrowed[resource]} borrowed"] if resource in borrowed else []
        parts += [f"{lent[resource]} lent to others"] if resource in lent else []
        lines.append(f"  {resource:10} {graph}{', '.join(parts)}")
    lines += _user_rules(found)
    share = "" if status.share is None else f"; share {status.share:.3f}"
    lines.append(f"  {status.running} run, {status.pending} wait{share}")
    return lines + [f"  {trouble}" for trouble in _troubles(found)]


def _user_rules(found: kind.Queue) -> list[str]:
    spec = found.spec
    lines = ["  users take turns by what they hold and have had"] if spec.user_fair else []
    if spec.user_limits is not None:
        limits = (wire.to_dict(found).get("spec") or {}).get("userLimits")
        lines.append(f"  limits of each user: {amounts.told_user_limits(limits)}")
    return lines


def _standing(shares: dict[str, Any]) -> list[str]:
    """What it holds against what it is entitled to, and the same of its users."""
    if "standing" not in shares:
        return []
    lines = [f"  {_held(shares['standing'])}", f"  {shares['pastUse']}"]
    return lines + [f"    {user}: {_held(each)}" for user, each in shares["users"].items()]


def _held(standing: dict[str, Any]) -> str:
    held = f"holds {standing['share']:.1%} of the cluster, entitled to "
    past = f"; {standing['sentence']}" if standing["sentence"] else ""
    return f"{held}{standing['entitlement']:.1%}{past}"


def _troubles(found: kind.Queue) -> list[str]:
    """What is wrong with it, in the words of its conditions."""
    good = {"Ready": "True", "OverCommitted": "False"}
    return [
        each.message
        for each in found.status.conditions or ()
        if each.status != good.get(each.type, each.status)
    ]


def _tree(found: list[kind.Queue]) -> list[tuple[int, kind.Queue]]:
    names = {each.name for each in found}
    listed: list[tuple[int, kind.Queue]] = []

    def add(parent: str | None, depth: int) -> None:
        for each in sorted(found, key=lambda one: one.name):
            above = each.spec.parent if each.spec.parent in names else None
            if above == parent and depth < 32:
                listed.append((depth, each))
                add(each.name, depth + 1)

    add(None, 0)
    return listed


def _spec(flags: dict[str, Any]) -> dict[str, Any]:
    spec = amounts.spec(flags)
    return spec | ({"namespaces": list(flags["namespaces"])} if flags["namespaces"] else {})


def _checked(value: dict[str, Any]) -> dict[str, Any]:
    from windlass.kinds import validation

    if faults := validation.validate(kind.Queue, validation.defaulted(kind.Queue, value)):
        listed = "\n".join(str(fault) for fault in faults)
        raise exits.CliError("The queue cannot be made like this.", listed, exits.INVALID)
    return value


queue.add_command(create, "create")
queue.add_command(queuetree.tree, "tree")
queue.add_command(queuetree.apply, "apply")
queue.add_command(pause, "pause")
queue.add_command(drain, "drain")
queue.add_command(resume, "resume")
queue.add_command(list_queues, "list")
queue.add_command(get, "get")
queue.add_command(change, "set")
queue.add_command(delete, "delete")
