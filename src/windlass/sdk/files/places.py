"""`RUN[/ROLE-INDEX]:PATH`, and entries of file trees. Pure.

Paths that a replica reports are not trusted: `checked` accepts only those that stay in the folder
that was asked for.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Sequence
from typing import Literal

from windlass.kinds.values import globs

_PLACE = re.compile(r"(?:run/)?([a-z0-9][a-z0-9.-]*)(?:/([a-z0-9][a-z0-9-]*))?:(.*)", re.DOTALL)
MOST_ENTRIES = 1_000_000
_LONGEST_PATH = 4096

Kind = Literal["file", "folder", "link", "other"]


class PathError(ValueError):
    """A path that is not valid; the message has the remedy."""


@dataclasses.dataclass(frozen=True, slots=True)
class Place:
    """A path of a run."""

    run: str
    replica: str
    """`ROLE-INDEX`, or the index alone; "": the first replica."""
    path: str

    def member(self, roles: Sequence[str]) -> tuple[str, int]:
        """Role and index of the replica. PathError if the run has no such role."""
        if not self.replica:
            return roles[0], 0
        role, _, index = self.replica.rpartition("-")
        role = role or roles[0]
        if not index.isdecimal() or len(index) > 6 or role not in roles:
            known = ", ".join(f"{each}-0" for each in roles)
            raise PathError(
                f"run {self.run} has no replica {self.replica!r}; name one as ROLE-INDEX, such as "
                f"{known}"
            )
        return role, int(index)


@dataclasses.dataclass(frozen=True, slots=True)
class Entry:
    """A file, folder or symbolic link, by its path relative to the folder that was listed; "" is
    what was asked for itself."""

    path: str
    kind: Kind
    size: int = 0
    modified: int = 0
    """Seconds since 1970."""
    mode: int = 0o644
    """Permission bits."""


def parse(text: str) -> Place | None:
    """The place that `RUN:PATH` names; None for a path of this machine, which has a `/` or `.` at
    its start if it has a colon."""
    found = _PLACE.fullmatch(text)
    return Place(found[1], found[2] or "", found[3]) if found else None


def checked(path: str) -> str:
    """The relative path that a replica reported. PathError unless it stays in its folder."""
    parts = path.split("/") if path else []
    bad = any(part in ("", ".", "..") or "\0" in part or "\n" in part for part in parts)
    too_long = any(len(part.encode(errors="surrogateescape")) > 255 for part in parts)
    if bad or too_long or len(path) > _LONGEST_PATH:
        raise PathError(f"the replica reports the path {shown(path)}, which is not a safe name")
    return path


def shown(text: str, most: int = 200) -> str:
    """A name as a terminal may show it: a job may have chosen it to do harm."""
    plain = "".join(
        each if each.isprintable() and not "\ud800" <= each <= "\udfff" else "?" for each in text
    )
    return plain if len(plain) <= most else plain[: most - 3] + "..."


def matching(entries: Iterable[Entry], pattern: str) -> list[Entry]:
    """The entries that match, and all that is below a folder that matches."""
    expression = globs.matcher(pattern)
    found, chosen = [], set()
    for entry in entries:
        above = entry.path
        inside = False
        while above and not inside:
            above = above.rpartition("/")[0]
            inside = above in chosen
        if entry.path and (inside or expression.fullmatch(entry.path)):
            chosen.add(entry.path)
            found.append(entry)
    return found
