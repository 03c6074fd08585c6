"""`windlass whoami`: whom the server takes you for, in which teams, and what you may do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.cli import base, client
from windlass.cli.output import Output

if TYPE_CHECKING:
    from windlass.sdk import rights

_MEANS = {
    "admin": "run jobs, read and write secrets, change who is in it",
    "member": "run jobs, read and write secrets",
    "viewer": "look at runs, logs and events",
}


@base.command(examples=("windlass whoami", "windlass whoami --json | jq -r .user"))
@base.target_options
def whoami(out: Output, target: base.Target) -> None:
    """Show who you are to the server, your teams, and what you may do in each."""

    async def work(session: client.Session) -> tuple[rights.Caller, dict[str, Any]]:
        from windlass.sdk import rights

        caller = await rights.whoami(session.store, session.namespace)
        place = {"namespace": session.namespace, "server": session.store.access.address}
        return caller, place

    caller, place = client.call(target, work)
    out.say(f"{caller.user} ({', '.join(caller.groups) or 'in no group'})")
    out.say(f"  namespace {place['namespace']} on {place['server']}")
    if caller.everything:
        out.say("  everywhere: everything")
    elif caller.platform:
        out.say(f"  everywhere: {caller.platform}: {_MEANS[caller.platform]}")
    for team, role in caller.teams.items():
        if role != caller.platform:
            out.say(f"  {team}: {role}: {_MEANS[role]}")
    if not caller.teams:
        out.hint("You are in no team. Ask an administrator: windlass team set TEAM --member YOU")
    told = {
        "user": caller.user, "groups": caller.groups, "teams": caller.teams,
        "everywhere": "everything" if caller.everything else caller.platform,
    }  # fmt: skip
    out.result(told | place, names=[caller.user])
