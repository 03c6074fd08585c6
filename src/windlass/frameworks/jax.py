"""JAX: `jax.distributed.initialize()` without arguments.

It takes the coordinator from JAX_COORDINATOR_ADDRESS, and count and id from Slurm's names, which
every member has. Without JAX_LOCAL_DEVICE_IDS it would take one device per process.
"""

from __future__ import annotations

from windlass.frameworks.group import Framework, Group, Member, Rendered


def render(group: Group, member: Member) -> Rendered:
    variables = {
        "JAX_COORDINATOR_ADDRESS": f"{group.lead.address}:{group.lead.port}",
        "JAX_COORDINATOR_BIND_ADDRESS": f"{group.lead.address}:{group.lead.port}",
        "JAX_NUM_PROCESSES": str(len(group.members)),
        "JAX_PROCESS_ID": str(member.rank),
    }
    if member.gpus:
        variables["JAX_LOCAL_DEVICE_IDS"] = ",".join(map(str, range(member.gpus)))
    return Rendered(variables, command=group.command)


FRAMEWORK = Framework(ports=1, render=render)
