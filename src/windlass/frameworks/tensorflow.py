"""TensorFlow: TF_CONFIG, with the roles of the run as its task types."""

from __future__ import annotations

import json

from windlass.frameworks.group import Framework, Group, Member, Rendered

_OUTSIDE = frozenset({"evaluator", "tensorboard"})
"""Tasks that watch the others and are not part of the cluster."""


def render(group: Group, member: Member) -> Rendered:
    cluster = group.once("cluster", lambda: json.dumps(_cluster(group)))
    task = json.dumps({"type": _type(member.role), "index": member.index})
    config = f'{{"cluster": {cluster}, "task": {task}}}'
    return Rendered({"TF_CONFIG": config}, command=group.command)


def _cluster(group: Group) -> dict[str, list[str]]:
    cluster: dict[str, list[str]] = {}
    for each in group.members:
        if each.role not in _OUTSIDE:
            cluster.setdefault(_type(each.role), []).append(f"{each.address}:{each.port}")
    return cluster


def _type(role: str) -> str:
    """`master` is what TensorFlow 1 called its chief."""
    return "chief" if role == "master" else role


FRAMEWORK = Framework(ports=1, render=render)
