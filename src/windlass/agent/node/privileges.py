"""What the agent may do on this machine, found out once at its start, and who pods run as.

As root, every namespace's pods run under a user id of their own, except those of `default` as long
as nobody but the machine's owner may start anything there (`agent.owners`). The ids are written
down in `STATE/users.json` before they are used: files of a team stay the team's.
"""

from __future__ import annotations

import dataclasses
import logging
import os
import sys
from pathlib import Path
from typing import Literal

from windlass.agent import cgroups, procfs, sandbox

log = logging.getLogger(__name__)

FIRST_USER, LAST_USER = 200_000, 265_535
"""User ids that no distribution gives to people or services; 65,536 of them."""
Isolation = Literal["user", "process"]


@dataclasses.dataclass(frozen=True, slots=True)
class Abilities:
    """What can be held on this machine, and why not where not."""

    isolation: Isolation = "process"
    mounts: bool = False
    cgroups: cgroups.Cgroups | None = None
    without_cgroups: str = ""

    def words(self) -> dict[str, str]:
        """For people: what is held and what is not. The Node's annotations carry it."""
        held = "counted, not held: a job can use more than it asked for"
        if self.cgroups is not None:
            names = ", ".join(self.cgroups.held)
            held = f"held by cgroup v{self.cgroups.version}: {names}"
        return {
            "isolation": self.isolation,
            "limits": held,
            "shm": "private, of the size asked for" if self.mounts else "the machine's, shared",
        }


def find(state: Path, isolation: str = "auto") -> Abilities:
    """Looks at the machine. `isolation`: auto, user (or fail) or process."""
    mounts = os.geteuid() == 0 and sandbox.may_mount()
    groups, why = None, ""
    try:
        groups = cgroups.find(state)
    except OSError as problem:
        why = problem.strerror or str(problem)
    chosen = level(isolation, mounts=mounts)
    return Abilities(chosen, mounts, groups, why)


def level(isolation: str = "auto", *, mounts: bool | None = None) -> Isolation:
    """How far teams are kept apart here; the engine's fact `isolation`."""
    if isolation == "auto":
        isolation = os.environ.get("WINDLASS_ISOLATION", "auto")
    if isolation == "process":
        return "process"
    able = os.geteuid() == 0 and (sandbox.may_mount() if mounts is None else mounts)
    if isolation == "user" and not able:
        raise PermissionError(
            "only root, with the right to mount, can give teams users of their own"
        )
    return "user" if able else "process"


class Users:
    """A user id for each namespace, durable."""

    def __init__(self, state: Path) -> None:
        self._file = state / "users.json"
        self._known: dict[str, int] = {
            name: int(user) for name, user in (procfs.read_json(self._file) or {}).items()
        }

    def of(self, namespace: str) -> int:
        """The namespace's id, given out at its first use and never to another."""
        if namespace not in self._known:
            user = max(self._known.values(), default=FIRST_USER - 1) + 1
            if user > LAST_USER:
                raise OSError(f"all user ids up to {LAST_USER} are given to namespaces")
            procfs.write_durably(self._file, {**self._known, namespace: user})
            self._known[namespace] = user
        return self._known[namespace]


def reachable(path: Path, user: int) -> bool:
    """Whether this user could come to `path` by itself: every folder above it lets it through."""
    return closed_above(path, user) is None


def closed_above(path: Path, user: int) -> Path | None:
    """The first folder on the way to `path` that this user may not pass."""
    for folder in [*reversed(path.parents)]:
        try:
            found = folder.stat()
        except OSError:
            return folder
        needed = 0o100 if found.st_uid == user else 0o001
        if not found.st_mode & needed:
            return folder
    return None


def own_software() -> list[Path]:
    """Folders that every job may read, even where the way to them is closed: Python and ourselves,
    as far as they are not open anyway."""
    candidates = [sys.base_prefix, sys.prefix, str(Path(__file__).parent.parent)]
    found: list[Path] = []
    for path in dict.fromkeys(Path(each).resolve() for each in candidates):
        if not any(path.is_relative_to(other) for other in found):
            found.append(path)
    return found
