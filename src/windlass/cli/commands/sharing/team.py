"""`windlass team`: teams with their namespace, queue, users and tokens."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from windlass.cli.commands.sharing import queue
from windlass.cli.lib import base, client_session, exit_codes, quantities, token_output
from windlass.cli.lib.output import Output
from windlass.store import errors

if TYPE_CHECKING:
    from windlass.sdk.admin import teams

_name = click.argument("name", metavar="TEAM")


@click.group(name="team", cls=base.Group)
def team() -> None:
    """Manage teams: a namespace, a queue, users and their tokens, in one step."""


def _settings(function: Any) -> Any:
    for option in (
        *quantities.QUEUE_OPTIONS,
        click.option("--admin", "admins", multiple=True, metavar="WHO",
                     help="May run jobs and change the members of the team."),
        click.option("--member", "members", multiple=True, metavar="WHO",
                     help="May run jobs: a user, group:NAME or account:NAME."),
        click.option("--viewer", "viewers", multiple=True, metavar="WHO",
                     help="May read runs, logs and events."),
        click.option("--quota", multiple=True, metavar="RESOURCE=N",
                     help="ResourceQuota of the namespace (Kubernetes): pods=100."),
        click.option("--ttl", default="90d", metavar="TIME",
                     help="Validity of new tokens, or never. [default: 90d]"),
        click.option("--tokens/--no-tokens", default=True,
                     help="Create a token for each new user without one."),
        click.option("--write", type=click.Path(file_okay=False, path_type=Path), default=None,
                     metavar="DIR", help="Write new tokens to DIR/USER.kubeconfig instead."),
    ):  # fmt: skip
        function = option(function)
    return function


@base.command(
    examples=(
        "windlass team create support --guarantee gpu=16 --limit gpu=64 --weight 2 \\",
        "    --member alice --viewer bob",
        "windlass team create vision --parent research --member group:vision --write tokens/",
    )
)
@_name
@_settings
@base.making_target_options
def create(out: Output, name: str, target: base.Target, **flags: Any) -> None:
    """Create a TEAM: namespace, queue, roles and tokens. Repeating it changes nothing."""
    _ensure(out, name, target, flags)


@base.command(
    examples=(
        "windlass team set support --guarantee gpu=24 --member carol",
        "windlass team set support --remove bob",
    ),
    name="set",
)
@_name
@_settings
@click.option("--remove", multiple=True, metavar="WHO", help="Remove from the team, with any role.")
@base.making_target_options
def change(out: Output, name: str, target: base.Target, **flags: Any) -> None:
    """Change a TEAM: its quota and its members. What is not given stays."""
    _ensure(out, name, target, flags, existing=True)
    for word in flags["remove"]:
        out.hint(
            f"{word} may do nothing in {name} any more; end the tokens, too, if that was all: "
            f"windlass token revoke --user {word}"
        )


@base.command(examples=("windlass team list", "windlass team list --json | jq"), name="list")
@base.target_options
def list_teams(out: Output, target: base.Target) -> None:
    """List all teams with their quota, usage and, if you may read them, their members."""

    async def work(session: client_session.Session) -> list[teams.Team]:
        from windlass.sdk.admin import teams

        return await teams.AsyncTeams(session.store).list()

    found = client_session.call(target, work)
    out.result([each.to_dict() for each in found], names=[each.name for each in found])
    rows = [
        [
            each.name, each.queue.spec.parent or "-",
            quantities.format_amounts(each.queue.spec.guarantee),
            quantities.format_amounts(each.queue.spec.limit),
            quantities.format_amounts(each.queue.status.used),
            str(each.queue.status.running), str(each.queue.status.pending), _member_counts(each),
        ]
        for each in found
    ]  # fmt: skip
    out.table(
        ["TEAM", "PARENT", "GUARANTEE", "LIMIT", "USED", "RUN", "WAIT", "PEOPLE"], rows
    )  # fmt: skip
    if not found:
        out.hint("No teams. Create one: windlass team create NAME --member USER")


@base.command(examples=("windlass team get support",))
@_name
@base.target_options
def get(out: Output, name: str, target: base.Target) -> None:
    """Show one TEAM: its queue, its members, their tokens."""

    async def work(
        session: client_session.Session,
    ) -> tuple[teams.Team, list[dict[str, Any]] | None]:
        from windlass.sdk.admin import teams, tokens

        found = await teams.AsyncTeams(session.store).get(name)
        listed = await tokens.AsyncTokens(session.store).list_or_none()
        people = {subject for each in found.people.values() for subject in each}
        return found, listed and [each for each in listed if each["user"] in people]

    found, tokens = client_session.call(target, work)
    out.result(found.to_dict() | {"tokens": tokens or []}, names=[found.name])
    spec, status = found.queue.spec, found.queue.status
    out.say(f"team/{name}: weight {spec.weight}{f', below {spec.parent}' if spec.parent else ''}")
    for label, amounts in (
        ("guarantee", spec.guarantee), ("limit", spec.limit), ("used", status.used),
        ("borrowed", status.borrowed), ("lent", status.lent),
    ):  # fmt: skip
        out.say(f"  {label:10} {quantities.format_amounts(amounts)}")
    out.say(f"  {status.running} running, {status.pending} waiting")
    if not found.readable:
        out.hint("Only admins of the team may see its members.")
        return
    for role, subjects in found.people.items():
        out.say(f"  {role + 's':10} {', '.join(subjects) or '-'}")
    for each in tokens or ():
        out.say(f"  token {each['id']} of {each['user']}, {token_output.validity(each)}")


@base.command(
    examples=("windlass team delete support", "windlass team delete support --stop-runs -y")
)
@_name
@click.option("--stop-runs", is_flag=True, help="Stop the runs that have not ended.")
@click.option("--dry-run", is_flag=True, help="Only list what would be deleted.")
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@base.target_options
def delete(
    out: Output, name: str, stop_runs: bool, dry_run: bool, yes: bool, target: base.Target
) -> None:
    """Delete a TEAM with everything in its namespace. Unfinished runs need --stop-runs."""

    async def fetch(session: client_session.Session) -> teams.Ending:
        from windlass.sdk.admin import teams

        return await teams.AsyncTeams(session.store).ending(name)

    async def work(session: client_session.Session) -> teams.Ending:
        from windlass.sdk.admin import teams

        return await teams.AsyncTeams(session.store).delete(name, stop_runs=stop_runs)

    going = client_session.call(target, fetch)
    refused = bool(going.children or (going.runs and not stop_runs))
    if not refused:
        for line in _going(name, going):
            out.say(line)
    if dry_run and not refused:
        out.result(_ended(name, going, done=False), names=[f"team/{name}"])
        return
    if not refused and not yes and out.human:
        out.confirm(f"Delete team {name}?", "--yes")
    if refused:
        client_session.call(target, work)  # says why
    with out.progress(f"team/{name} is terminating"):
        gone = client_session.call(target, work)
    out.say(f"team/{name} deleted")
    out.result(_ended(name, gone, done=True), names=[f"team/{name}"])


def _ensure(
    out: Output, name: str, target: base.Target, flags: dict[str, Any], *, existing: bool = False
) -> None:
    spec = quantities.spec(flags)
    people = {"admin": flags["admins"], "member": flags["members"], "viewer": flags["viewers"]}
    for flag, given in (*people.items(), ("remove", flags.get("remove", ()))):
        _refuse_bad_subject(f"--{flag}", given)
    quota = quantities.pairs("quota", flags["quota"]) or {}
    token_output.check_ttl(flags["ttl"])

    async def work(
        session: client_session.Session,
    ) -> tuple[list[teams.Step], list[dict[str, Any]]]:
        from windlass.sdk.admin import teams

        wanted = teams.Wanted(spec, people, flags.get("remove", ()), quota)  # type: ignore[arg-type]
        steps = await teams.AsyncTeams(session.store).ensure(name, wanted, must_exist=existing)
        await queue.warn_overcommitted(out, session, spec, name)
        users = teams.users_of(wanted.people) if flags["tokens"] else []
        return steps, await token_output.ensure(session, users, name, flags["ttl"], flags["write"])

    steps, issued = client_session.call(target, work)
    for step in steps:
        out.say(f"{step.what} {step.action}{f' ({step.note})' if step.note else ''}")
    token_output.show(out, issued)
    changed = any(s.action != "unchanged" for s in steps) or any("token" in i for i in issued)
    if not changed:
        out.say(f"team/{name} is up to date; nothing was changed.")
    out.result(
        {
            "team": name,
            "changed": changed,
            "steps": [{"object": s.what, "action": s.action, "note": s.note} for s in steps],
            "tokens": issued,
        },
        names=[f"team/{name}"],
    )


def _refuse_bad_subject(flag: str, given: tuple[str, ...]) -> None:
    from windlass.sdk.admin import teams

    for word in given:
        try:
            teams.subject(word)
        except errors.BadRequest:
            raise exit_codes.CliError(
                f"{flag} {word} cannot be used.",
                "Write a user name, group:NAME or account:NAME.",
                exit_codes.USAGE,
            ) from None


def _member_counts(each: teams.Team) -> str:
    if not each.readable:
        return "?"
    counts = [f"{len(found)} {role}s" for role, found in each.people.items() if found]
    return ", ".join(counts) or "none"


def _going(name: str, going: teams.Ending) -> list[str]:
    lines = [f"namespace/{name} with {going.records} records of runs, {going.secrets} secrets"]
    if going.runs:
        lines.append(f"{len(going.runs)} runs that have not ended: {', '.join(going.runs[:8])}")
    lines.append(f"queue/{name}")
    lines += [f"token {each['id']} of {each['user']}" for each in going.tokens]
    return [f"to delete: {line}" for line in lines]


def _ended(name: str, going: teams.Ending, *, done: bool) -> dict[str, Any]:
    return {
        "team": name, "deleted": done, "runs": going.runs, "records": going.records,
        "secrets": going.secrets, "tokens": [each["id"] for each in going.tokens],
    }  # fmt: skip


team.add_command(create, "create")
team.add_command(list_teams, "list")
team.add_command(get, "get")
team.add_command(change, "set")
team.add_command(delete, "delete")
