"""`windlass whoami`: your user, your teams and your permissions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from windlass.cli.lib import base, client_session
from windlass.cli.lib.output import Output

if TYPE_CHECKING:
    from windlass.sdk.admin.whoami import Caller

_MEANS = {
    "admin": "run jobs, read and write secrets, change its members",
    "member": "run jobs, read and write secrets",
    "viewer": "read runs, logs and events",
}


@base.command(examples=("windlass whoami", "windlass whoami --json | jq -r .user"))
@base.target_options
def whoami(out: Output, target: base.Target) -> None:
    """Show your user name on the server, your teams, and your permissions in each."""

    async def work(session: client_session.Session) -> tuple[Caller, dict[str, Any]]:
        from windlass.sdk.admin import whoami as admin_whoami

        caller = await admin_whoami.whoami(session.store, session.namespace)
        place = {"namespace": session.namespace, "server": session.store.access.address}
        return caller, place

    caller, place = client_session.call(target, work)
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
    report = {
        "user": caller.user, "groups": caller.groups, "teams": caller.teams,
        "everywhere": "everything" if caller.everything else caller.platform,
    }  # fmt: skip
    out.result(report | place, names=[caller.user])
