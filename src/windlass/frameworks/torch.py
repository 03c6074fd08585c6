"""PyTorch: `python train.py` finds its process group, `torchrun train.py` needs no flags.

torchrun reads its flags from PET_*; it starts one process per GPU of the member and gives each its
own rank, so the plain names then are torchrun's.
"""

from __future__ import annotations

from windlass.frameworks.group import Framework, Group, Member, Rendered


def render(group: Group, member: Member) -> Rendered:
    lead = group.lead
    variables = {
        "PET_NPROC_PER_NODE": str(member.slots),
        "PET_NNODES": str(len(group.members)),
    }
    if group.least:
        # Members come and go: they meet again at the first one, whose index 0 never leaves.
        variables |= {
            "PET_NNODES": f"{group.least}:{len(group.members)}",
            "PET_RDZV_BACKEND": "c10d",
            "PET_RDZV_ENDPOINT": f"{lead.address}:{lead.port}",
            "PET_RDZV_ID": f"{group.uid}-{group.attempt}",
        }
    else:
        variables |= {
            "PET_NODE_RANK": str(member.rank),
            "PET_MASTER_ADDR": lead.address,
            "PET_MASTER_PORT": str(lead.port),
        }
    return Rendered(variables, command=group.command)


FRAMEWORK = Framework(ports=1, render=render)
