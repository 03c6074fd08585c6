"""Patterns over paths: `*`, `?` and `[..]` within one name, `**` for any folders. Standard library
only: it also runs inside pods."""

from __future__ import annotations

import re

_MAGIC = re.compile(r"[*?\[]")


def is_pattern(path: str) -> bool:
    return bool(_MAGIC.search(path))


def split_pattern(path: str) -> tuple[str, str]:
    """The folder before the first part with a wildcard, and the rest: `a/b/*.pt` -> `a/b`, `*.pt`.

    >>> split_pattern("/data/run-*/x.txt")
    ('/data', 'run-*/x.txt')
    """
    parts = path.split("/")
    first = next(place for place, part in enumerate(parts) if is_pattern(part))
    folder = "/".join(parts[:first])
    if not folder and path.startswith("/"):
        folder = "/"
    return folder or ".", "/".join(parts[first:])


def matcher(pattern: str) -> re.Pattern[str]:
    """A regular expression for a pattern: `*` and `?` within one name, `**` for any folders."""
    parts = [part for part in pattern.split("/") if part and part != "."]
    text = ""
    for place, part in enumerate(parts):
        last = place == len(parts) - 1
        if part == "**":
            text += ".+" if last else "(?:[^/]+/)*"
        else:
            text += _of_name(part) + ("" if last else "/")
    return re.compile(text, re.DOTALL)


def _of_name(part: str) -> str:
    found, place = "", 0
    while place < len(part):
        char = part[place]
        place += 1
        end = part.find("]", place + 1) if char == "[" else -1
        if char == "*":
            found += "[^/]*"
        elif char == "?":
            found += "[^/]"
        elif end > 0:
            inside = part[place:end].replace("\\", "\\\\").replace("[", "\\[")
            negated = inside[:1] in "!^"
            inside = inside[1:] if negated else inside
            found += f"(?!/)[{'^' if negated else ''}{inside}]" if inside else re.escape(char)
            place = end + 1
        else:
            found += re.escape(char)
    return found
