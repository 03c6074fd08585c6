"""Serializes a group into a pod before the addresses of its members are known, and reads it back.

If every member has an address of its own, `control.runs.pod_template` writes the configuration into
the pod, and `agent.init.main` builds the group inside the pod when all addresses are known. The
configuration lists roles, not members: its size does not depend on the number of members. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.frameworks.group import Group, Member


def write(framework: str, group: Group, member: Member) -> dict[str, Any]:
    """The configuration, as a JSON value, from which `read` builds the group and the member."""
    first = {each.role: each for each in reversed(group.members)}
    return {
        "framework": framework,
        "run": group.run,
        "uid": group.uid,
        "attempt": group.attempt,
        "role": member.role,
        "index": member.index,
        "command": list(group.command),
        "least": group.least,
        "python": group.python,
        "port": member.port,
        "roles": [
            {
                "name": role,
                "size": group.sizes[role],
                "gpus": first[role].gpus,
                "cpus": first[role].cpus,
                "memory": first[role].memory,
            }
            for role in dict.fromkeys(each.role for each in group.members)
        ],
    }


def sizes(config: Mapping[str, Any]) -> dict[str, int]:
    """Role -> number of members."""
    return {str(role["name"]): int(role["size"]) for role in config["roles"]}


def read(
    config: Mapping[str, Any], addresses: Mapping[str, Sequence[str]], root: str, companion: str
) -> tuple[Group, Member]:
    """The group and the member. `addresses`: by role, in the order of the members' indexes."""
    members = [
        (role, index, addresses[role["name"]][index])
        for role in config["roles"]
        for index in range(role["size"])
    ]
    group = Group(
        run=config["run"],
        uid=config["uid"],
        attempt=config["attempt"],
        members=tuple(
            Member(
                role=role["name"],
                index=index,
                rank=rank,
                address=address,
                port=config["port"],
                gpus=role["gpus"],
                cpus=role["cpus"],
                memory=role["memory"],
            )
            for rank, (role, index, address) in enumerate(members)
        ),
        command=tuple(config["command"]),
        root=root,
        python=config["python"],
        companion=companion,
        least=config["least"],
    )
    key = config["role"], config["index"]
    return group, next(each for each in group.members if (each.role, each.index) == key)
