"""Where the platform API lies: the group's name and how its paths are read."""

from __future__ import annotations

import urllib.parse

GROUP, VERSION = "platform.windlass.dev", "v1alpha1"
ROOT = f"/apis/{GROUP}/{VERSION}"


def parts(raw_path: str) -> list[str]:
    """What follows the group in a path as it came over the wire; empty if it is no path of ours."""
    if not raw_path.startswith(ROOT + "/"):
        return []
    return [urllib.parse.unquote(part) for part in raw_path[len(ROOT) + 1 :].split("/")]
