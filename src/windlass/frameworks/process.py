"""Plain processes: names for rank, size and hosts, and nothing else."""

from __future__ import annotations

from windlass.frameworks.group import Framework, Group, Member, Rendered


def render(group: Group, _member: Member) -> Rendered:
    return Rendered(command=group.command)


FRAMEWORK = Framework(ports=1, render=render)
