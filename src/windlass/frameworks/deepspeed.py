"""DeepSpeed: torch's names, a hostfile, and the launcher started on each member instead of ssh.

`deepspeed train.py` becomes `deepspeed --hostfile ... --no_ssh --node_rank N ... train.py`; what
the user sets is left alone.
"""

from __future__ import annotations

import json

from windlass.frameworks import torch
from windlass.frameworks.group import Framework, Group, Member, Rendered, companion


def render(group: Group, member: Member) -> Rendered:
    files = {"hostfile": group.once("hostfile", lambda: hostfile(group))}
    variables = {
        **torch.render(group, member).variables,
        "WINDLASS_FILES": group.once("files", lambda: json.dumps(files)),
        "WINDLASS_HOSTFILE": f"{group.folder}/hostfile",
    }
    command = companion(group, "exec", "--", *_command(group, member))
    return Rendered(variables, files, command)


def hostfile(group: Group) -> str:
    return "".join(f"{member.name} slots={member.slots}\n" for member in group.members)


def _command(group: Group, member: Member) -> list[str]:
    program, *rest = group.command
    if program.rpartition("/")[2] not in ("deepspeed", "deepspeed.pt", "ds"):
        return list(group.command)
    flags = {
        "--hostfile": f"{group.folder}/hostfile",
        "--node_rank": str(member.rank),
        "--master_addr": group.lead.address,
        "--master_port": str(group.lead.port),
    }
    given = {word.partition("=")[0] for word in rest if word.startswith("--")}
    added = [f"{flag}={value}" for flag, value in flags.items() if flag not in given]
    return [program, "--no_ssh", *added, *rest]


FRAMEWORK = Framework(ports=1, render=render)
