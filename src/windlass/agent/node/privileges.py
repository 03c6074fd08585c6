"""What the agent may do on this machine, determined at its start, and the user ids of pods.

If the agent runs as root, the pods of each namespace get a user id of their own, except those of
`default` while only the machine's owner may start pods there (`agent.node.single_tenant`). Ids are
recorded in `STATE/users.json` before they are used, so that a team's files keep their owner.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import Literal

from windlass.agent.runtime import cgroups, procfs, sandbox

log = logging.getLogger(__name__)

FIRST_USER, LAST_USER = 200_000, 265_535
"""User ids that no distribution assigns to users or services; 65,536 of them."""
_MOST_LINKS = 40
"""As in the kernel: a path with more is a loop."""
Isolation = Literal["user", "process"]


@dataclasses.dataclass(frozen=True, slots=True)
class Abilities:
    """The isolation and limits that the agent can enforce on this machine."""

    isolation: Isolation = "process"
    mounts: bool = False
    cgroups: cgroups.Cgroups | None = None
    without_cgroups: str = ""
    """Why there are no cgroups."""

    def summary(self) -> dict[str, str]:
        """A readable summary for an annotation of the Node."""
        limits = "counted, not enforced: a job can use more than it requested"
        if self.cgroups is not None:
            names = ", ".join(self.cgroups.enforced)
            limits = f"enforced by cgroup v{self.cgroups.version}: {names}"
        return {
            "isolation": self.isolation,
            "limits": limits,
            "shm": "private, of the requested size" if self.mounts else "the machine's, shared",
        }


def find(state: Path, isolation: str = "auto") -> Abilities:
    """What the agent can do here. `isolation`: auto, user (raises PermissionError if impossible) or
    process."""
    mounts = os.geteuid() == 0 and sandbox.may_mount()
    groups, why = None, ""
    try:
        groups = cgroups.find(state)
    except OSError as problem:
        why = problem.strerror or str(problem)
    chosen = level(isolation, mounts=mounts)
    return Abilities(chosen, mounts, groups, why)


def level(isolation: str = "auto", *, mounts: bool | None = None) -> Isolation:
    """The isolation between namespaces; published as the capability `isolation`."""
    if isolation == "auto":
        isolation = os.environ.get("WINDLASS_ISOLATION", "auto")
    if isolation == "process":
        return "process"
    able = os.geteuid() == 0 and (sandbox.may_mount() if mounts is None else mounts)
    if isolation == "user" and not able:
        raise PermissionError(
            "isolation by user needs root and the right to mount; "
            "run the agent as root or use --isolation process"
        )
    return "user" if able else "process"


class NamespaceUsers:
    """A user id for each namespace, recorded on disk."""

    def __init__(self, state: Path) -> None:
        self._file = state / "users.json"
        self._known: dict[str, int] = {
            name: int(user) for name, user in (procfs.read_json(self._file) or {}).items()
        }

    def of(self, namespace: str) -> int:
        """The id of a namespace, assigned at its first use and never to another namespace."""
        if namespace not in self._known:
            user = max(self._known.values(), default=FIRST_USER - 1) + 1
            if user > LAST_USER:
                raise OSError(f"all user ids up to {LAST_USER} are assigned to namespaces")
            procfs.write_durably(self._file, {**self._known, namespace: user})
            self._known[namespace] = user
        return self._known[namespace]


def reachable(path: Path, user: int) -> bool:
    """Whether the user may traverse every folder above `path`."""
    return closed_above(path, user) is None


def closed_above(path: Path, user: int) -> Path | None:
    """The first folder above `path` that the user may not traverse; None if there is none."""
    for folder in [*reversed(path.parents)]:
        try:
            found = folder.stat()
        except OSError:
            return folder
        needed = 0o100 if found.st_uid == user else 0o001
        if not found.st_mode & needed:
            return folder
    return None


def resolved_for(path: str, user: int) -> Path:
    """The path without the symbolic links that the user could follow. Below a folder that the user
    may not traverse nothing is read, so that the result says nothing of what is there."""
    done, left, links = Path("/"), [*reversed(Path(os.path.normpath(path)).parts[1:])], 0
    while left:
        if not reachable(done / "x", user):
            return done.joinpath(*reversed(left))
        step = done / left.pop()
        if step.is_symlink() and links < _MOST_LINKS:
            links += 1
            target = Path(os.path.normpath(done / step.readlink()))
            done, left = Path("/"), [*left, *reversed(target.parts[1:])]
        else:
            done = step
    return done


def own_software() -> list[Path]:
    """Folders that every job may read: those of Python and of Windlass, without folders inside of
    others."""
    candidates = [sys.base_prefix, sys.prefix, str(Path(__file__).parents[2])]
    found: list[Path] = []
    for path in dict.fromkeys(Path(each).resolve() for each in candidates):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found
