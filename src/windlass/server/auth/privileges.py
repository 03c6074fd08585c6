"""What only administrators of a team may ask for: a high priority, and not to be preempted.

Both put a Run before those of others, so a member's Run has the default priority at most and is
preemptible. The verb `prioritize` on runs lifts this; `windlass-admin` has it. The embedded server
(`server.apiserver.run_privileges`) and an admission policy on Kubernetes (`install.policies`) have
the rule from here. Pure.
"""

from __future__ import annotations

from windlass.kinds.types import run
from windlass.server.auth.authorization import Rights, refusal
from windlass.server.auth.identity import Attributes, Identity

VERB = "prioritize"
SPECS: dict[str, tuple[str, ...]] = {
    "runs.windlass.dev": ("spec",),
    "cronruns.windlass.dev": ("spec", "template", "spec"),
}
"""Where the spec of a Run is, by kind."""
HIGHEST = run.DEFAULT_PRIORITY
"""The highest priority that a member may ask for."""
TOO_HIGH = (
    f"only administrators of a team may ask for a priority above {HIGHEST}; ask for {HIGHEST} or "
    "less, or leave --priority out"
)
NOT_PREEMPTIBLE = (
    "only administrators of a team may submit runs that are not preempted; leave "
    "--no-preemptible (preemptible: false) out, or ask one of them"
)


async def check(
    rights: Rights, identity: Identity, namespace: str, name: str, *, high: bool, firm: bool
) -> None:
    """Forbidden if a Run asks for more than the caller may. `high`: its priority; `firm`: it is not
    preemptible."""
    if identity.is_master or not (high or firm):
        return
    resource = run.Run.resource
    wanted = Attributes(VERB, resource.group, resource.plural, "", namespace, name)
    if not await rights.allowed(identity, wanted):
        raise refusal(identity, wanted, TOO_HIGH if high else NOT_PREEMPTIBLE)
