"""A group on its way into a pod whose members' addresses are not known yet, and back.

Where every member has an address of its own, `control.podrender` writes an order into the pod and
`agent.prepare` makes the group of it, inside the pod, once the address book is full. It tells
roles, not members: it is the same few lines for two members and for thousands. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from windlass.frameworks.group import Group, Member


def write(framework: str, group: Group, member: Member) -> dict[str, Any]:
    """What `read` makes the group and its member from; as JSON knows it."""
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


def sizes(order: Mapping[str, Any]) -> dict[str, int]:
    """How many members of each role there must be."""
    return {str(role["name"]): int(role["size"]) for role in order["roles"]}


def read(
    order: Mapping[str, Any], addresses: Mapping[str, Sequence[str]], root: str, companion: str
) -> tuple[Group, Member]:
    """The group with its members' addresses (by role, in the order of their indexes)."""
    members = [
        (role, index, addresses[role["name"]][index])
        for role in order["roles"]
        for index in range(role["size"])
    ]
    group = Group(
        run=order["run"],
        uid=order["uid"],
        attempt=order["attempt"],
        members=tuple(
            Member(
                role=role["name"],
                index=index,
                rank=rank,
                address=address,
                port=order["port"],
                gpus=role["gpus"],
                cpus=role["cpus"],
                memory=role["memory"],
            )
            for rank, (role, index, address) in enumerate(members)
        ),
        command=tuple(order["command"]),
        root=root,
        python=order["python"],
        companion=companion,
        least=order["least"],
    )
    key = order["role"], order["index"]
    return group, next(each for each in group.members if (each.role, each.index) == key)
