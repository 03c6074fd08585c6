"""`windlass queue`: the quota of queues, and the runs that wait in them."""

from __future__ import annotations

from typing import Any

import click

from windlass.cli.commands.sharing import queue_tree
from windlass.cli.lib import base, client_session, exit_codes, live, quantities
from windlass.cli.lib.flags import field_flags
from windlass.cli.lib.output import Output
from windlass.kinds import codec
from windlass.kinds.types import queue as kind
from windlass.kinds.values import quantity
from windlass.store import errors

_name = click.argument("name", metavar="QUEUE")


@click.group(name="queue", cls=base.Group)
def queue() -> None:
    """Manage the queue tree: guarantees, limits, order."""


def _settings(function: Any) -> Any:
    """Adds the flags for the fields of a queue."""
    for option in (
        *quantities.QUEUE_OPTIONS,
        click.option(
            "--team", "namespaces", multiple=True, help="Namespace whose runs may use it."
        ),
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
    """Create a QUEUE."""
    spec = _spec(flags)
    value = {
        "apiVersion": kind.Queue.resource.api_version,
        "kind": "Queue",
        "metadata": {"name": name},
        "spec": spec,
    }
    _checked(value)

    async def work(session: client_session.Session) -> kind.Queue:
        made = await session.store.create(codec.from_dict(kind.Queue, value))
        await warn_overcommitted(out, session, spec, name)
        return made

    made = client_session.call(target, work)
    out.say(f"queue/{name} created")
    out.result(codec.to_dict(made), names=[f"queue/{name}"])


@base.command(
    examples=("windlass queue set vision --limit gpu=32", "windlass queue set fair --weight 3"),
    name="set",
)
@_name
@_settings
@base.target_options
def change(out: Output, name: str, target: base.Target, **flags: Any) -> None:
    """Change fields of a QUEUE; the others stay."""
    spec = _spec(flags)
    if not spec:
        raise exit_codes.CliError(
            "No change was given.", "For example: --limit gpu=8.", exit_codes.USAGE
        )

    async def work(session: client_session.Session) -> tuple[kind.Queue, kind.Queue]:
        before = await session.store.get(kind.Queue, name)
        made = await session.store.patch(kind.Queue, name, patch={"spec": spec})
        await warn_overcommitted(out, session, spec, name)
        return before, made

    before, made = client_session.call(target, work)
    same = before.metadata.generation == made.metadata.generation
    out.say(f"queue/{name} {'unchanged' if same else 'changed'}")
    out.result(codec.to_dict(made), names=[f"queue/{name}"])


@base.command(examples=("windlass queue delete vision",))
@_name
@base.target_options
def delete(out: Output, name: str, target: base.Target) -> None:
    """Delete a QUEUE. Its runs wait until they are moved to another queue."""
    client_session.call(target, lambda session: session.store.delete(kind.Queue, name))
    out.say(f"queue/{name} deleted")
    out.result({"deleted": [name]}, names=[f"queue/{name}"])


@base.command(examples=("windlass queue list", "windlass queue list --json | jq"), name="list")
@base.target_options
def list_queues(out: Output, target: base.Target) -> None:
    """List all queues as a tree, with their usage."""

    async def work(session: client_session.Session) -> list[kind.Queue]:
        return (await session.store.list(kind.Queue)).items

    found = client_session.call(target, work)
    rows = [
        ["  " * depth + each.name, each.spec.order, str(each.spec.weight),
         str(each.status.running), str(each.status.pending),
         *map(quantities.format_amounts, (each.status.used, each.status.borrowed, each.status.lent,
                                          each.spec.guarantee, each.spec.limit))]
        for depth, each in _tree(found)
    ]  # fmt: skip
    out.result([codec.to_dict(each) for each in found], names=[each.name for each in found])
    header = [
        "NAME", "ORDER", "WEIGHT", "RUN", "WAIT", "USED", "BORROWED", "LENT", "GUARANTEE", "LIMIT",
    ]  # fmt: skip
    out.table(header, rows)
    for each in found:
        for trouble in _troubles(each):
            out.warn(f"queue/{each.name}: {trouble}.")
    if not found:
        out.hint("No queues. Create one: windlass queue create NAME")


@base.command(examples=("windlass queue get vision",))
@_name
@base.target_options
def get(out: Output, name: str, target: base.Target) -> None:
    """Show one QUEUE: its usage, its limits, and its first waiting runs."""

    async def work(
        session: client_session.Session,
    ) -> tuple[kind.Queue, dict[str, Any], dict[str, Any]]:
        from windlass.sdk.admin import queues

        found = await session.store.get(kind.Queue, name)
        try:
            items = (await queues.tree(session.store))["items"]
        except errors.ApiError:
            items = []  # the platform's own server is not reachable
        shares: dict[str, Any] = next((item for item in items if item["name"] == name), {})
        try:
            page = await session.read(
                f"{client_session.PLATFORM}/ps", [("finished", "0"), ("limit", "500")]
            )
        except errors.ApiError:
            # Users without this permission see only their own team's runs.
            page = {"items": []}
        return found, page, shares

    found, page, shares = client_session.call(target, work)
    mine = [item for item in page["items"] if item["queue"] == name]
    standing = {key: shares[key] for key in ("standing", "pastUse", "users") if key in shares}
    out.result({"queue": codec.to_dict(found), "runs": mine, **standing}, names=[name])
    for line in [*_described(out, found), *_standing(shares)]:
        out.say(line)
    for item in mine:
        place = f" ({item['position']}/{item['of']})" if "position" in item else ""
        out.say(f"    {item['namespace']}/{item['name']} {item['phase']}{place}")


@base.command(examples=("windlass queue pause vision",))
@_name
@base.target_options
def pause(out: Output, name: str, target: base.Target) -> None:
    """Pause a QUEUE and the queues below it: no run starts, running runs keep running."""
    _stop(out, name, "hold", "paused: no run starts in it", target)


@base.command(
    examples=(
        "windlass queue drain vision --wait",
        "windlass queue drain vision --now     # stops what runs by its checkpoint contract",
    )
)
@_name
@click.option("--now", is_flag=True, help="Stop running runs, too; they wait until `resume`.")
@click.option("--wait", is_flag=True, help="Return when no run is running in it.")
@base.target_options
def drain(out: Output, name: str, now: bool, wait: bool, target: base.Target) -> None:
    """Drain a QUEUE: no run starts until `resume`; running runs end, or are stopped by --now."""
    outcome = "draining" + ("" if now else ": running runs keep running to their end")
    changed = _stop(out, name, "drain" if now else "hold", outcome, target)

    async def emptied(session: client_session.Session) -> None:
        from windlass.sdk import watching

        chosen = f"metadata.name={name}"
        async for _, each in watching.changes(session.store, kind.Queue, field_selector=chosen):
            seen = each.status.observed_generation >= changed.metadata.generation
            if seen and not each.status.running:
                return

    if wait:
        with out.progress(f"queue/{name} is draining"):
            client_session.call(target, emptied)
        out.say(f"queue/{name} is empty")


@base.command(examples=("windlass queue resume vision",))
@_name
@base.target_options
def resume(out: Output, name: str, target: base.Target) -> None:
    """Resume a QUEUE that was paused or drained."""
    _stop(out, name, None, "open", target)


def _stop(out: Output, name: str, how: str | None, outcome: str, target: base.Target) -> kind.Queue:
    async def work(session: client_session.Session) -> kind.Queue:
        from windlass.sdk.admin import queues

        return await queues.stop(session.store, name, how)

    changed = client_session.call(target, work)
    out.say(f"queue/{name} is {outcome}")
    out.result(codec.to_dict(changed), names=[f"queue/{name}"])
    return changed


def _described(out: Output, found: kind.Queue) -> list[str]:
    """Fields and usage of a queue, line by line."""
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
    lines.append(f"  {status.running} running, {status.pending} waiting{share}")
    return lines + [f"  {trouble}" for trouble in _troubles(found)]


def _user_rules(found: kind.Queue) -> list[str]:
    spec = found.spec
    lines = ["  fair sharing between users, by current and past usage"] if spec.user_fair else []
    if spec.user_limits is not None:
        limits = (codec.to_dict(found).get("spec") or {}).get("userLimits")
        lines.append(f"  limits per user: {quantities.format_user_limits(limits)}")
    return lines


def _standing(shares: dict[str, Any]) -> list[str]:
    """Usage and entitlement of the queue and of its users."""
    if "standing" not in shares:
        return []
    lines = [f"  {_usage(shares['standing'])}", f"  {shares['pastUse']}"]
    return lines + [f"    {user}: {_usage(each)}" for user, each in shares["users"].items()]


def _usage(standing: dict[str, Any]) -> str:
    use = f"uses {standing['share']:.1%} of the cluster, entitled to "
    past = f"; {standing['sentence']}" if standing["sentence"] else ""
    return f"{use}{standing['entitlement']:.1%}{past}"


def _troubles(found: kind.Queue) -> list[str]:
    """The messages of conditions that report a problem."""
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
    spec = quantities.spec(flags)
    return spec | ({"namespaces": list(flags["namespaces"])} if flags["namespaces"] else {})


async def warn_overcommitted(
    out: Output, session: client_session.Session, spec: dict[str, Any], *names: str
) -> None:
    """Warns if guarantees were set that exceed what there is."""
    from windlass.sdk.admin import queues

    if spec.get("guarantee"):
        for sentence in await queues.overcommitted(session.store, *names):
            out.warn(exit_codes.sentence(sentence))


def _checked(value: dict[str, Any]) -> None:
    from windlass.kinds import validate

    faults = validate.validate(kind.Queue, validate.defaulted(kind.Queue, value))
    field_flags.checked(faults, "The queue is not valid.")


queue.add_command(create, "create")
queue.add_command(queue_tree.tree, "tree")
queue.add_command(queue_tree.apply, "apply")
queue.add_command(pause, "pause")
queue.add_command(drain, "drain")
queue.add_command(resume, "resume")
queue.add_command(list_queues, "list")
queue.add_command(get, "get")
queue.add_command(change, "set")
queue.add_command(delete, "delete")
